"""The installed Horovod: its version, and the target for which tfdist built it. Horovod is not loaded.

Example:
    >>> Record(tensorflow="2.21.0", python_tag="cp311", built_in=("gloo",), revision=1).to_json()[:14]
    '{"built_in": ['
"""

import importlib
import importlib.metadata
import json
import os
from dataclasses import asdict, dataclass

RECORD = "tfdist-build.json"  # in the folder of the distribution's metadata
_LIBRARY = "horovod/tensorflow/mpi_lib"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record of the installation for which tfdist built a wheel; the wheel contains it."""

    tensorflow: str  # the version of TensorFlow
    python_tag: str  # the Python version, as ``cp311``
    built_in: tuple[str, ...]  # the transports that are built in
    revision: int  # the revision of the recipe
    cuda: str = ""  # the release of the CUDA toolkit that compiled it; empty without GPUs
    mpi: str = ""  # the MPI that is built in; empty without MPI

    def to_json(self) -> str:
        """Return the record as the text of its file."""
        return json.dumps(asdict(self), sort_keys=True)


def read_record(text: str | None) -> Record | None:
    """Return the record that a text holds; None if it holds none.

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
    """An installed Horovod."""

    version: str  # the version of Horovod
    record: Record | None = None  # the record of tfdist's build; None if Horovod was built by something else
    is_whole: bool = True  # whether its library for TensorFlow is there


def find_installed() -> Installed | None:
    """Return the Horovod of this Python, or None."""
    importlib.invalidate_caches()
    try:
        found = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    library = [file for file in found.files or () if str(file).startswith(_LIBRARY)]
    is_listed = found.files is not None  # an editable installation has no list
    return Installed(
        version=found.version,
        record=read_record(found.read_text(RECORD)),
        is_whole=not is_listed or any(os.path.exists(str(file.locate())) for file in library),
    )
