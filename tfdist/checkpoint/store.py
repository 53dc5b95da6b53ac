"""Where a training's checkpoints are kept: saved whole or not at all, and handed out only when every byte is right."""

import errno
import functools
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.checkpoint import arrays as files_of_arrays
from tfdist.checkpoint import manifest as manifests
from tfdist.checkpoint.local import LocalPlace
from tfdist.checkpoint.manifest import File, Manifest
from tfdist.checkpoint.names import ARRAYS, SUFFIX, step_name, step_of
from tfdist.data.storage import storage
from tfdist.errors import CorruptDataError, MissingFileError, ShortReadError, StorageError
from tfdist.launch import faults

_TRIES = 3  # for what is replaced or removed while it is read
_log = logging.getLogger(__name__)


class Place(Protocol):
    """A directory with a folder for each step, wherever it is.

    Attributes:
        url: as its user knows it.
        keeps_names: whether a file may have the same name in each save, because folders appear at once.
    """

    url: str
    keeps_names: bool

    def names(self) -> list[str]:
        """Return the names of all folders of steps, whole or not."""

    def has(self, name: str, file: str) -> bool:
        """Return whether there is such a file in a step's folder."""

    def read(self, name: str, file: str, most: int) -> NDArray[np.uint8]:
        """Return the bytes of a file, at most ``most``."""

    def put(
        self,
        name: str,
        files: Sequence[tuple[str, Callable[[BinaryIO], None]]],
        *,
        on_ready: Callable[[Path | None], None],
    ) -> None:
        """Make a step's folder of these files, or nothing; the last one says what the others are."""

    def remove(self, name: str) -> None:
        """Remove a step's folder as far as that is possible, its manifest first."""

    def clean(self) -> None:
        """Remove what killed processes left."""

    def remove_if_empty(self) -> None:
        """Remove the directory itself, unless something is in it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved at a step, every byte of it checked.

    Attributes:
        step: how many steps were done.
        digest: 64 hexadecimal digits; equal for equal content.
        state: JSON of whoever saved it.
        arrays: names to arrays, not to be written to; of a local file they are mapped, and outlive its removal.
    """

    step: int
    digest: str
    state: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]


class Store:
    """The checkpoints of one training in a directory.

    A save is whole or did not happen, whenever its process is killed; one that fails leaves the earlier ones as they
    were. The step that is saved last counts: an earlier training's later ones are removed, and older ones but `keep`.

    Args:
        url: a path, or a URL that fsspec knows; made when something is saved.
        keep: how many checkpoints stay.
        durable: whether a save is on the disk when it returns, so that it outlives a loss of power.
        storage_options: what fsspec's driver takes; for URLs alone.

    Raises:
        ConfigError: no such kind of URL, or an argument out of bounds.
        MissingDependencyError: the driver's package is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(folder)
        ...     store.save(120, {"kernel": np.ones((2, 3), np.float32)}, {"epoch": 4})
        ...     found = store.newest()
        ...     found.step, found.state, found.arrays["kernel"].sum().item()
        (120, {'epoch': 4}, 6.0)
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int = 2,
        durable: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._keep = validation.integer("keep", keep, minimum=1)
        self.durable = validation.boolean("durable", durable)
        self._place = _place(url, durable, storage_options)
        self._damaged: set[str] = set()
        self.url = self._place.url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def save(self, step: int, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Save a checkpoint, and remove what it makes superfluous.

        Args:
            step: how many steps were done.
            arrays: names to NumPy arrays or eager tensors; numbers and bools, bfloat16 included, no text.
            state: JSON: None, bool, int, float, str, lists and mappings of them.
        Raises:
            ConfigError: something that cannot be saved; the message says where it is.
            StorageError: the disk is full, or may not be written to; an OSError. What was saved before stands.
        """
        name = step_name(validation.integer("step", step, minimum=0, maximum=manifests.LARGEST_STEP))
        given, plain = files_of_arrays.as_arrays(arrays), manifests.plain_state(state)
        file_name, written = ARRAYS if self._place.keeps_names else _own_name(), list[File]()
        reached = functools.partial(faults.at, step=step, memory=not self.durable)

        def write_arrays(file: BinaryIO) -> None:
            size, checksum = files_of_arrays.write(file, given, on_middle=lambda: reached("save-middle"))
            written.append(File(name=file_name, bytes=size, crc32c=checksum))

        def write_manifest(file: BinaryIO) -> None:
            file.write(Manifest(step=step, state=plain, files=tuple(written)).to_bytes())

        reached("save-begin")
        self._place.clean()
        self._place.put(
            name,
            [(file_name, write_arrays), (manifests.NAME, write_manifest)],
            on_ready=lambda folder: reached("save-commit", path=folder),
        )
        self._damaged.discard(name)
        self._retire(name)

    def _retire(self, saved: str) -> None:
        left = self._keep
        for name in sorted(self._place.names(), reverse=True):
            is_whole = name == saved or (name not in self._damaged and self._place.has(name, manifests.NAME))
            if name <= saved and is_whole and left:
                left -= 1
            else:
                self._place.remove(name)
        self._damaged.clear()

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is sound, every byte checked; None where there is none.

        One that is damaged is left out, with a warning in the log that says what is wrong, and what is used instead.

        Raises:
            StorageError: the directory or the store cannot be read.
        """
        found, wrong = None, dict[str, str]()
        for _ in range(_TRIES):
            names = self._place.names()
            found, wrong, has_missed = self._look(names)
            if not has_missed or set(names).issuperset(self._place.names()):
                break  # else one was removed while it was read, which happens when there is a newer one
        for name, reason in wrong.items():
            used = f"{step_name(found.step)} is used" if found else "there is no other, so training begins anew"
            _log.warning("The checkpoint %s/%s is damaged: %s Instead, %s.", self.url, name, reason, used)
            faults.warned(f"{name} is damaged")
        self._damaged = set(wrong)
        return found

    def _look(self, names: list[str]) -> tuple[Checkpoint | None, dict[str, str], bool]:
        """The newest that is sound, what is wrong with newer ones, and whether some were incomplete."""
        wrong, has_missed = dict[str, str](), False
        for name in sorted(names, reverse=True):
            for _ in range(_TRIES):
                try:
                    found = self._load(name)
                    wrong.pop(name, None)
                    return found, wrong, has_missed
                except (CorruptDataError, StorageError) as error:
                    if not _is_damage(error):
                        raise
                    if not self._place.has(name, manifests.NAME):  # it is being removed, or was never finished
                        has_missed = True
                        wrong.pop(name, None)
                        break
                    wrong[name] = str(error)  # unless it was being replaced: look again
        return None, wrong, has_missed

    def _load(self, name: str) -> Checkpoint:
        manifest = self._manifest(name)
        arrays: dict[str, NDArray[Any]] = {}
        for file in manifest.files:
            data = self._place.read(name, file.name, file.bytes)
            if data.size != file.bytes:
                raise CorruptDataError(f"{file.name} has {data.size} bytes; {file.bytes} were written.")
            if (checksum := files_of_arrays.crc32c(data)) != file.crc32c:
                raise CorruptDataError(f"{file.name} has the checksum {checksum:08x}; {file.crc32c:08x} was written.")
            try:
                found = files_of_arrays.read(data)
            except CorruptDataError as error:
                raise CorruptDataError(f"{file.name} cannot be used: {error}") from error
            if twice := arrays.keys() & found.keys():
                raise CorruptDataError(f"{file.name} has the array {min(twice)!r} of another file.")
            arrays |= found
        return Checkpoint(step=manifest.step, digest=manifest.digest, state=manifest.state, arrays=arrays)

    def _manifest(self, name: str) -> Manifest:
        manifest = Manifest.from_bytes(self._place.read(name, manifests.NAME, manifests.LARGEST_BYTES).tobytes())
        if manifest.step != step_of(name):
            raise CorruptDataError(f"{manifests.NAME} is that of step {manifest.step}.")
        return manifest

    def peek(self) -> tuple[int, str] | None:
        """Return step and digest of the newest checkpoint whose manifest is sound; its arrays are not looked at.

        Raises:
            StorageError: the directory or the store cannot be read.
        """
        for name in sorted(self._place.names(), reverse=True):
            try:
                manifest = self._manifest(name)
            except (CorruptDataError, StorageError) as error:
                if not _is_damage(error):
                    raise
                continue
            return manifest.step, manifest.digest
        return None

    def discard(self) -> None:
        """Remove all checkpoints, what killed processes left, and the directory if nothing else is in it."""
        for name in sorted(self._place.names()):
            self._place.remove(name)
        self._place.clean()
        self._place.remove_if_empty()


def _place(url: str | os.PathLike[str], durable: bool, options: Mapping[str, Any] | None) -> Place:
    found = storage(url, storage_options=options)
    if found.local is not None:
        return LocalPlace(found.local, durable=durable)
    from tfdist.checkpoint.remote import RemotePlace  # fsspec takes a while to load

    return RemotePlace(found.url, options or {})


def _own_name() -> str:
    return f"arrays-{secrets.token_hex(8)}{SUFFIX}"


def _is_damage(error: Exception) -> bool:
    """Whether another checkpoint may be better; not so where none can be read, or none may."""
    return isinstance(error, (CorruptDataError, MissingFileError, ShortReadError)) or (
        isinstance(error, StorageError) and error.errno == errno.EIO
    )
