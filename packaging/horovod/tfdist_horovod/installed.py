"""Whether the installed Horovod fits a request, and whether it works, which a child process proves."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.native.build_target import Target
from tfdist.native.horovod_record import Installed, Record
from tfdist.variables import PREFIX
from tfdist.waiting import end_process
from tfdist_horovod import recipe
from tfdist_horovod.recipe import Options

_MARK = "tfdist-build:"
_END_SECONDS = 5.0  # for what a killed process has written

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


def record_of(target: Target, options: Options) -> Record:
    """Return the record of what a build makes."""
    return Record(
        tensorflow=target.version,
        python_tag=target.python_tag,
        built_in=options.built_in,
        revision=recipe.REVISION,
        cuda=options.cuda.version if options.cuda else "",
        mpi=options.mpi.version if options.mpi else "",
    )


def misfit(found: Installed, target: Target, options: Options) -> str:
    """Return the reason why an installed Horovod of ours is unfit; empty if it fits, for instance with more built in.

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
    """The result of a child process that imports Horovod and reduces a tensor over one process.

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
            with contextlib.suppress(subprocess.TimeoutExpired):  # a daemon of MPI may hold its output open
                process.communicate(timeout=_END_SECONDS)
            end_process(process, 0.0, ())
            if process.stdout is not None:
                process.stdout.close()
    return interpret(output.splitlines(), process.returncode)


def interpret(lines: Sequence[str], code: int) -> Proof:
    """Return the proof that the lines and the exit code of the child give."""
    output = "\n".join(lines)
    for line in lines:
        if line.startswith(_MARK):
            return Proof(built_in=tuple(json.loads(line.removeprefix(_MARK))), output=output)
    if code < 0:
        return Proof(error=f"it ended by {signal.Signals(-code).name}", output=output)
    said = [line.strip() for line in lines if line.strip()]
    return Proof(error=said[-1] if said else f"it ended with code {code} without a word", output=output)
