"""Checkpoints in any store that fsspec reaches: the manifest comes last, and goes first.

Nothing can be renamed there at once, and no lock ends with its holder. What has no manifest is no checkpoint; arrays
have a name of their own in each save, so that one with the same step stands until the new manifest replaces its own.
See to it that one process writes.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfdist.checkpoint import checkpoint_manifest as manifests
from tfdist.checkpoint.checkpoint_manifest import RECEIPT, RUN_DIGITS, is_file_of_checkpoint, is_step_name, mark_of
from tfdist.errors import CorruptDataError, MissingFileError, StorageError
from tfdist.storage.remote_storage import FsspecStorage


class RemotePlace:
    """A directory of a store; see `tfdist.checkpoint.checkpoint_store.Place` for its methods."""

    keeps_names = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._root = FsspecStorage(url, storage_options=options)
        self.url = self._root.url
        self._options = options

    def _folder(self, name: str) -> FsspecStorage:
        return FsspecStorage(f"{self.url}/{name}", storage_options=self._options)

    def names(self) -> list[str]:
        """Return the names of all folders of steps."""
        return [name for name in self._root.folders() if is_step_name(name)]

    def has(self, name: str, file: str) -> bool:
        """Return whether there is such a file in a step's folder."""
        return file in self._folder(name).names()

    def read(self, name: str, file: str, most: int) -> NDArray[np.uint8]:
        """Return the bytes of a file."""
        folder = self._folder(name)
        size = folder.size(file)
        if size > most:
            raise CorruptDataError(f"{file} has {size} bytes, more than {most}.")
        return np.frombuffer(folder.read(file, 0, size), np.uint8)

    def put(
        self,
        name: str,
        files: Iterable[tuple[str, Callable[[BinaryIO], None]]],
        *,
        mark: str,
        is_joint: bool,
        on_ready: Callable[[Path | None], None],
    ) -> None:
        """Make a step's folder of these files, the last of which makes it count."""
        folder, is_whole = self._folder(name), False
        before = set(folder.names())
        seen = set(before)
        try:
            for file, fill in files:
                if file == manifests.NAME:
                    on_ready(None)
                seen.add(file)
                with folder.create(file) as remote:
                    fill(remote)
            is_whole = True
        finally:
            if is_joint:
                seen.update(folder.names())
            for file in seen:
                is_ours = mark_of(file) == mark
                is_next = is_joint and mark_of(file)[:RUN_DIGITS] == mark[:RUN_DIGITS] and mark_of(file) > mark
                goes = (not is_whole or file.endswith(RECEIPT)) if is_ours else is_whole and file in before
                if is_file_of_checkpoint(file) and goes and not is_next:
                    with suppress(StorageError):  # nobody reads what no manifest names
                        folder.remove(file)
            if not is_whole:
                folder.remove_directory()

    def put_part(self, name: str, files: Iterable[tuple[str, Callable[[BinaryIO], None]]], *, mark: str) -> None:
        """Write files of a step's folder that another process makes."""
        folder = self._folder(name)
        for file, fill in files:
            with folder.create(file) as remote:
                fill(remote)

    def staged(self, name: str, file: str, *, mark: str) -> bytes | None:
        """Return the bytes of a small file that `put_part` has written; None where there is none yet."""
        try:
            return self._folder(name).read(file)
        except MissingFileError:
            return None

    def remove(self, name: str) -> None:
        """Remove a step's folder, its manifest first; files that are not ours stay."""
        folder = self._folder(name)
        with suppress(StorageError):  # the next save tries again
            for file in sorted(folder.names(), key=lambda file: file != manifests.NAME):
                if file == manifests.NAME or is_file_of_checkpoint(file):
                    folder.remove(file)
            folder.remove_directory()

    def clean(self, *, spare: str | None = None) -> None:
        """Do nothing: a folder without a manifest is removed like an old one."""

    def remove_if_empty(self) -> None:
        """Remove the directory itself, unless something is in it."""
        self._root.remove_directory()

    def leave_sign(self, run: str) -> None:
        """Do nothing: the URL says where it is."""

    def has_sign(self, run: str) -> bool:
        """Return whether other processes see the same; what lies in the memory of this one they do not."""
        return not self.url.startswith("memory:")

    def remove_sign(self, run: str) -> None:
        """Do nothing."""
