"""Inspect the installed Horovod in a child process: its version, what it was built for, and whether it works.

Example:
    >>> Record(tensorflow="2.21.0", python_tag="cp311", built_in=("gloo",), revision=1).to_json()[:14]
    '{"built_in": ['
"""

import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tfdist.build import recipe
from tfdist.build.recipe import Options
from tfdist.native.build_target import Target
from tfdist.variables import PREFIX

RECORD = "tfdist-build.json"  # beside METADATA in the folder of the distribution
_MARK = "tfdist-build:"
_LIBRARY = "horovod/tensorflow/mpi_lib"

# One process, so no rendezvous: it shows that the library loads, starts its thread and reduces; where TensorFlow has a
# GPU, the tensor lies on it, and driver, CUDA and NCCL have to fit each other.
_PROGRAM = f"""
import json, os
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy().tolist()
assert total == [1.0, 2.0], f"an allreduce over one process gave {{total}} for [1.0, 2.0]"
built = dict(gloo=hvd.gloo_built(), mpi=hvd.mpi_built(), nccl=hvd.nccl_built())
hvd.shutdown()
print("{_MARK}" + json.dumps([name for name, has in built.items() if has]), flush=True)
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a wheel of ours was built for; it lies in the wheel.

    Attributes:
        tensorflow: the version of TensorFlow.
        python_tag: the Python, ``cp311``.
        built_in: the transports.
        revision: that of the recipe.
        cuda: the release of the CUDA toolkit that compiled it; empty without GPUs.
        mpi: the MPI that is built in; empty without.
    """

    tensorflow: str
    python_tag: str
    built_in: tuple[str, ...]
    revision: int
    cuda: str = ""
    mpi: str = ""

    @classmethod
    def of(cls, target: Target, options: Options) -> "Record":
        """Return the record of what a build makes."""
        return cls(
            tensorflow=target.version,
            python_tag=target.python_tag,
            built_in=options.built_in,
            revision=recipe.REVISION,
            cuda=options.cuda.version if options.cuda else "",
            mpi=options.mpi.version if options.mpi else "",
        )

    def to_json(self) -> str:
        """Return the record as the text of its file."""
        return json.dumps(asdict(self), sort_keys=True)


def read_record(text: str | None) -> Record | None:
    """Return the record that a text holds; None when it is no record.

    Example:
        >>> read_record('{"tensorflow": "2.21.0"}')
    """
    try:
        said = json.loads(text or "")
        return Record(
            tensorflow=str(said["tensorflow"]),
            python_tag=str(said["python_tag"]),
            built_in=tuple(map(str, said["built_in"])),
            revision=int(said["revision"]),
            cuda=str(said.get("cuda", "")),
            mpi=str(said.get("mpi", "")),
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A Horovod that is installed.

    Attributes:
        version: its version.
        record: what tfdist built it for; None when something else built it.
        is_whole: whether its library for TensorFlow is there.
    """

    version: str
    record: Record | None = None
    is_whole: bool = True


def find_installed() -> Installed | None:
    """Return what is installed in this Python; nothing is loaded. None when there is none."""
    importlib.invalidate_caches()
    try:
        found = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    library = [file for file in found.files or () if str(file).startswith(_LIBRARY)]
    is_listed = found.files is not None  # an editable installation of somebody else's has no list
    return Installed(
        version=found.version,
        record=read_record(found.read_text(RECORD)),
        is_whole=not is_listed or any(os.path.exists(str(file.locate())) for file in library),
    )


def misfit(found: Installed, target: Target, options: Options) -> str:
    """Return why an installed Horovod of ours does not do; empty when it does, for instance with more built in.

    Example:
        >>> record = Record(tensorflow="2.16.2", python_tag="cp311", built_in=("gloo",), revision=1)
        >>> misfit(Installed(version="0.28.1", record=record), Target.example(), Options())
        'it was built for TensorFlow 2.16.2'
    """
    record = found.record
    missing = [name for name in options.built_in if record is None or name not in record.built_in]
    if record is None:
        return "it is not known what it was built for"
    if not found.is_whole:
        return "its library is missing"
    if found.version != recipe.VERSION:
        return f"its version is {found.version}, not {recipe.VERSION}"
    if record.tensorflow != target.version:
        return f"it was built for TensorFlow {record.tensorflow}"
    if record.python_tag != target.python_tag:
        return f"it was built for Python {record.python_tag}"
    if record.revision != recipe.REVISION:
        return "it was built by another revision of the recipe"
    if missing:
        return f"it was built without {' and '.join(missing)}"
    if options.cuda and record.cuda != options.cuda.version:
        return f"it was built with CUDA {record.cuda}"
    if options.mpi and record.mpi != options.mpi.version:
        return f"it was built with {record.mpi}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a child process saw that imported Horovod and reduced a tensor over one process.

    Attributes:
        built_in: the transports that the library names; empty when it does not work.
        error: why it does not work, in one line; empty when it does.
        output: all that the child wrote.
    """

    built_in: tuple[str, ...] = ()
    error: str = ""
    output: str = ""


def proof_command() -> list[str]:
    """Return the command that proves that Horovod works in this Python."""
    return [sys.executable, "-P", "-c", _PROGRAM]


def proof_environment(inherited: Mapping[str, str], *, on_gpus: bool) -> dict[str, str]:
    """Return an environment in which Horovod believes to be the only process."""
    launchers = ("HOROVOD_", "OMPI_", "PMI", "PMIX_", "SLURM_", "TF_CONFIG", PREFIX)
    alone = {name: value for name, value in inherited.items() if not name.startswith(launchers)}
    gpus = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return {**alone, **gpus, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONFAULTHANDLER": "1"}


def prove(environ: Mapping[str, str], *, on_gpus: bool, timeout_seconds: float) -> Proof:
    """Return whether the installed Horovod works, with a deadline."""
    process = subprocess.Popen(
        proof_command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=proof_environment(environ, on_gpus=on_gpus),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return Proof(error=f"it did not answer within {timeout_seconds:g} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return interpret(output.splitlines(), process.returncode)


def interpret(lines: Sequence[str], code: int) -> Proof:
    """Return what the lines of the child mean."""
    output = "\n".join(lines)
    for line in lines:
        if line.startswith(_MARK):
            return Proof(built_in=tuple(json.loads(line.removeprefix(_MARK))), output=output)
    if code < 0:
        return Proof(error=f"it ended by {signal.Signals(-code).name}", output=output)
    said = [line.strip() for line in lines if line.strip()]
    return Proof(error=said[-1] if said else f"it ended with code {code} without a word", output=output)
