"""The store of a training's checkpoints: saved whole or not at all, and returned only if every byte is right."""

import contextlib
import errno
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from numpy.typing import NDArray

from tfdist import validation
from tfdist.checkpoint import checkpoint_manifest as manifests
from tfdist.checkpoint import safetensors_file as files_of_arrays
from tfdist.checkpoint.checkpoint_manifest import (
    ARRAYS,
    FOLDERS,
    RECEIPT,
    SUFFIX,
    File,
    Joint,
    Manifest,
    Part,
    is_step_name,
    part_name,
    step_name,
    step_of,
)
from tfdist.errors import ConfigError, CorruptDataError, MissingFileError, ShortReadError, StorageError
from tfdist.monitor import faults
from tfdist.storage.directory import storage

_TRIES = 3  # for what is replaced or removed while it is read
_LOOKS_SECONDS = (0.001, 0.2)  # between two looks for the parts of others: at first, and at most
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved state, every byte of it checked.

    Attributes:
        step: the number of steps done.
        digest: 64 hexadecimal digits, equal for equal content.
        state: the caller's JSON.
        arrays: the read-only arrays by name; those of local files are memory-mapped, and outlive the file.
        count: the number of workers that have saved a part of their own; 0: none.
        parts: the arrays of the requested workers' parts, by the worker's index.
    """

    step: int
    digest: str
    state: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    count: int = 0
    parts: Mapping[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)


class Store:
    """The checkpoints of one training in a directory.

    A save is whole or did not happen, whenever its process is killed; one that fails leaves the earlier ones as they
    were. The step that is saved last counts: checkpoints of later steps, from an earlier training, are removed. So are
    older ones, except the newest `keep`.

    Args:
        url: a path, or a URL that fsspec knows; the directory is made at the first save.
        keep: the number of checkpoints that stay.
        durable: whether a save is on the disk when it returns, so that it survives a power failure.
        storage_options: options of fsspec's driver; only for URLs.

    Raises:
        ConfigError: the kind of URL is unknown, or an argument is out of bounds.
        MissingDependencyError: the driver's package is missing.

    Example:
        >>> import tempfile, numpy as np
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
        self._storage = storage(url, storage_options=storage_options, durable=durable)
        self._damaged: set[str] = set()
        self.url = self._storage.url if self._storage.local is None else str(self._storage.local)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def save(
        self,
        step: int,
        arrays: Mapping[str, Any],
        state: Mapping[str, Any],
        *,
        parts: Sequence[Part] = (),
        joint: Joint | None = None,
    ) -> None:
        """Save a checkpoint, and remove those that it makes superfluous.

        Args:
            step: the number of steps done.
            arrays: NumPy arrays or eager tensors by name; numbers and bools, bfloat16 included, no text.
            state: JSON: None, bool, int, float, str, and lists and mappings of them.
            parts: the contributions of single workers: all of workers 0 to n - 1, except those that are written by
                `save_part`.
            joint: the identity of the save, if other processes write parts of it; the save waits for these.
        Raises:
            ConfigError: something cannot be saved; the message says where it is.
            StorageError: the disk is full, or may not be written to, or a part did not come; an OSError. Earlier
                checkpoints stay.
        """
        name = step_name(validation.integer("step", step, minimum=0, maximum=manifests.LARGEST_STEP))
        own = {part.index: files_of_arrays.as_arrays(part.arrays) for part in parts}
        given, plain = files_of_arrays.as_arrays(arrays), manifests.plain_state(state)
        count = len(own) if joint is None else joint.count
        if len(own) != len(parts) or own.keys() - range(count):
            raise ConfigError(
                f"parts are of workers {[part.index for part in parts]}; with {count} parts they must be different "
                f"ones of 0 to {count - 1}. Pass joint where other processes write some.",
                name="parts",
                received=[part.index for part in parts],
            )
        written = list[File]()
        reached = functools.partial(faults.at, step=step, memory=not self.durable)
        mark = secrets.token_hex(8) if joint is None else joint.mark

        def files() -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
            yield self._arrays(ARRAYS, given, None, mark, written, on_middle=lambda: reached("save-middle"))
            for index, ours in sorted(own.items()):
                yield self._arrays(part_name(index), ours, index, mark, written)
            if joint is not None:
                written.extend(self._others(name, step, joint, missing=set(range(count)) - own.keys()))
            manifest = Manifest(step=step, state=plain, files=tuple(written), parts=count)
            yield manifests.NAME, lambda file: _write(file, manifest.to_bytes())  # last: it commits the rest

        reached("save-begin")
        self._storage.clean(FOLDERS, spare=None if joint is None else joint.run)
        self._storage.publish(
            name,
            files(),
            FOLDERS,
            mark=mark,
            is_joint=joint is not None,
            on_ready=lambda folder: reached("save-commit", path=folder),
        )
        self._damaged.discard(name)
        self._retire(name)

    def save_part(self, step: int, part: Part, joint: Joint) -> None:
        """Save this worker's part of a checkpoint that another process makes by `save`, and do not wait for it.

        Args:
            step: the number of steps done.
            part: this worker's contribution.
            joint: the identity of the save, the same in both processes.
        Raises:
            ConfigError: something cannot be saved; the message says where it is.
            StorageError: the disk is full, or may not be written to; an OSError. The other process then gives up too.
        """
        name = step_name(validation.integer("step", step, minimum=0, maximum=manifests.LARGEST_STEP))
        ours, written = files_of_arrays.as_arrays(part.arrays), list[File]()
        reached = functools.partial(faults.at, step=step, memory=not self.durable)
        receipt = self._file_name(part_name(part.index), joint.mark, RECEIPT)

        def files() -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
            yield self._arrays(
                part_name(part.index), ours, part.index, joint.mark, written, on_middle=lambda: reached("save-middle")
            )
            reached("save-commit")
            content = manifests.receipt(joint, step=step, part=part.index, file=written[0])
            yield receipt, lambda file: _write(file, content)

        reached("save-begin")
        try:
            self._storage.stage(name, files(), mark=joint.mark)
        except OSError as error:
            content = manifests.failure(joint, step=step, part=part.index, reason=str(error))
            with contextlib.suppress(OSError):  # then the other process waits for it in vain
                self._storage.stage(name, [(receipt, lambda file: _write(file, content))], mark=joint.mark)
            raise

    def _arrays(
        self,
        stem: str,
        arrays: Mapping[str, NDArray[Any]],
        part: int | None,
        mark: str,
        written: list[File],
        *,
        on_middle: Callable[[], None] = lambda: None,
    ) -> tuple[str, Callable[[BinaryIO], None]]:
        """Return the name of a file of arrays, and a function that writes it and records what was written."""
        name = self._file_name(stem, mark, SUFFIX)

        def write(file: BinaryIO) -> None:
            size, checksum = files_of_arrays.write(file, arrays, on_middle=on_middle)
            written.append(File(name=name, bytes=size, crc32c=checksum, part=part))

        return name, write

    def _file_name(self, stem: str, mark: str, suffix: str) -> str:
        return f"{stem}{suffix}" if self._storage.keeps_names else f"{stem}-{mark}{suffix}"

    def _others(self, name: str, step: int, joint: Joint, *, missing: set[int]) -> list[File]:
        """Wait until other workers have written their parts of a step; return the files of these parts."""
        found, end, pause = dict[int, File](), time.monotonic() + joint.timeout_seconds, _LOOKS_SECONDS[0]
        while True:
            for index in missing - found.keys():
                receipt = self._file_name(part_name(index), joint.mark, RECEIPT)
                data = self._storage.staged(name, receipt, mark=joint.mark)
                file = None if data is None else manifests.read_receipt(data, joint, step=step, part=index)
                if file is not None:
                    found[index] = file
            if len(found) == len(missing):
                return [found[index] for index in sorted(found)]
            if time.monotonic() > end:
                raise StorageError(
                    f"{self.url}/{name} cannot be saved: after {joint.timeout_seconds:g} seconds worker "
                    f"{min(missing - found.keys())} of {joint.count} has not written its part. Look whether it runs, "
                    "and sees this directory.",
                    path=f"{self.url}/{name}",
                    workers=missing - found.keys(),
                )
            time.sleep(pause)
            pause = min(2 * pause, _LOOKS_SECONDS[1])

    def _retire(self, saved: str) -> None:
        left = self._keep
        for name in reversed(self._names()):
            is_whole = name == saved or (name not in self._damaged and self._is_whole(name))
            if name <= saved and is_whole and left:
                left -= 1
            elif name <= saved or is_whole or self._storage.keeps_names:  # else others may have begun the next save
                self._storage.remove_folder(name, FOLDERS)
        self._damaged.clear()

    def _names(self) -> list[str]:
        return [name for name in self._storage.folders() if is_step_name(name)]

    def _is_whole(self, name: str) -> bool:
        return manifests.NAME in self._storage.folder(name).names()

    def newest(self, parts: Callable[[Manifest], Container[int]] | None = None) -> Checkpoint | None:
        """Return the newest sound checkpoint, every byte checked; None if there is none.

        Damaged ones are skipped, with a warning that says what is wrong and what is used instead.

        Args:
            parts: a function that returns the workers whose parts to read and check, given the manifest; None: all.
        Raises:
            StorageError: the directory or the store cannot be read.
        """
        found, wrong = None, dict[str, str]()
        for _ in range(_TRIES):
            names = self._names()
            found, wrong, has_missed = self._look(names, parts)
            if not has_missed or set(names).issuperset(self._names()):
                break  # else one was removed while it was read, which happens when there is a newer one
        for name, reason in wrong.items():
            used = f"{step_name(found.step)} is used" if found else "there is no other, so training begins anew"
            _log.warning("The checkpoint %s/%s is damaged: %s Instead, %s.", self.url, name, reason, used)
            faults.warned(f"{name} is damaged")
        self._damaged = set(wrong)
        return found

    def _look(
        self, names: list[str], parts: Callable[[Manifest], Container[int]] | None
    ) -> tuple[Checkpoint | None, dict[str, str], bool]:
        """Return the newest sound checkpoint, the damage of newer ones, and whether some were incomplete."""
        wrong, has_missed = dict[str, str](), False
        for name in sorted(names, reverse=True):
            for _ in range(_TRIES):
                try:
                    found = self._load(name, parts)
                    wrong.pop(name, None)
                    return found, wrong, has_missed
                except (CorruptDataError, StorageError) as error:
                    if not _is_damage(error):
                        raise
                    if not self._is_whole(name):  # it is being removed, or was never finished
                        has_missed = True
                        wrong.pop(name, None)
                        break
                    wrong[name] = str(error)  # unless it was being replaced: look again
        return None, wrong, has_missed

    def _load(self, name: str, parts: Callable[[Manifest], Container[int]] | None = None) -> Checkpoint:
        manifest = self._manifest(name)
        wanted = range(manifest.parts) if parts is None else parts(manifest)
        arrays: dict[str, NDArray[Any]] = {}
        of_parts = {index: dict[str, NDArray[Any]]() for index in range(manifest.parts) if index in wanted}
        for file in manifest.files:
            if file.part is not None and file.part not in of_parts:
                continue
            found = self._read(name, file)
            into = arrays if file.part is None else of_parts[file.part]
            if twice := into.keys() & found.keys():
                raise CorruptDataError(
                    f"{file.name} has the array {min(twice)!r} of another file.", name=min(twice), path=file.name
                )
            into |= found
        return Checkpoint(
            step=manifest.step,
            digest=manifest.digest,
            state=manifest.state,
            arrays=arrays,
            count=manifest.parts,
            parts=of_parts,
        )

    def _read(self, name: str, file: File) -> dict[str, NDArray[Any]]:
        data = self._storage.folder(name).array(file.name, file.bytes)
        if data.size != file.bytes:
            raise CorruptDataError(f"{file.name} has {data.size} bytes; {file.bytes} were written.")
        if (checksum := files_of_arrays.crc32c(data)) != file.crc32c:
            raise CorruptDataError(f"{file.name} has the checksum {checksum:08x}; {file.crc32c:08x} was written.")
        try:
            return files_of_arrays.read(data)
        except CorruptDataError as error:
            raise CorruptDataError(f"{file.name} cannot be used: {error}") from error

    def _manifest(self, name: str) -> Manifest:
        data = self._storage.folder(name).array(manifests.NAME, manifests.LARGEST_BYTES)
        manifest = Manifest.from_bytes(data.tobytes())
        if manifest.step != step_of(name):
            raise CorruptDataError(f"{manifests.NAME} is that of step {manifest.step}.")
        return manifest

    def peek(self) -> tuple[int, str] | None:
        """Return step and digest of the newest checkpoint with a sound manifest, without reading its arrays.

        Raises:
            StorageError: the directory or the store cannot be read.
        """
        for name in reversed(self._names()):
            try:
                manifest = self._manifest(name)
            except (CorruptDataError, StorageError) as error:
                if not _is_damage(error):
                    raise
                continue
            return manifest.step, manifest.digest
        return None

    def leave_sign(self, run: str) -> None:
        """Leave an empty folder that shows another process whether it sees the same directory; see `has_sign`.

        Args:
            run: 8 hexadecimal digits that are not used elsewhere.
        Raises:
            StorageError: the directory may not be written to.
        """
        self._storage.stage(step_name(0), (), mark=_sign(run))

    def has_sign(self, run: str) -> bool:
        """Return whether a sign was left in this directory; always True for an object store."""
        return self._storage.is_staged(step_name(0), mark=_sign(run))

    def remove_sign(self, run: str) -> None:
        """Remove the sign that `leave_sign` has left, and the directory if nothing else is in it."""
        self._storage.unstage(step_name(0), mark=_sign(run))

    def discard(self) -> None:
        """Remove all checkpoints, the leftovers of killed processes, and the directory if nothing else is in it."""
        for name in self._names():
            self._storage.remove_folder(name, FOLDERS)
        self._storage.clean(FOLDERS)
        self._storage.remove_directory()


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _sign(run: str) -> str:
    """Return the mark of an empty folder in the making, which `clean` removes if its maker was killed."""
    return f"{run}{0:08x}"


def _is_damage(error: Exception) -> bool:
    """Return whether an error is damage of one checkpoint, so that another may be better."""
    return isinstance(error, (CorruptDataError, MissingFileError, ShortReadError)) or (
        isinstance(error, StorageError) and error.errno == errno.EIO
    )
