"""Checkpoints in any store that fsspec reaches: the manifest comes last, and goes first.

Nothing can be renamed there at once, and no lock ends with its holder. What has no manifest is no checkpoint; arrays
have a name of their own in each save, so that one with the same step stands until the new manifest replaces its own.
See to it that one process writes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfdist.checkpoint import manifest as manifests
from tfdist.checkpoint.names import SUFFIX, is_step_name
from tfdist.data.remote import FsspecStorage
from tfdist.errors import CorruptDataError, StorageError


class RemotePlace:
    """A directory of a store; see `tfdist.checkpoint.store.Place` for its methods.

    Args:
        url: such as ``s3://bucket/backup``.
        options: what the driver takes.
    """

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
        """Return the bytes of a file.

        Raises:
            MissingFileError: there is none.
            CorruptDataError: it has more than ``most`` bytes.
        """
        folder = self._folder(name)
        size = folder.size(file)
        if size > most:
            raise CorruptDataError(f"{file} has {size} bytes, more than {most}.")
        return np.frombuffer(folder.read(file, 0, size), np.uint8)

    def put(
        self,
        name: str,
        files: Sequence[tuple[str, Callable[[BinaryIO], None]]],
        *,
        on_ready: Callable[[Path | None], None],
    ) -> None:
        """Make a step's folder of these files, the last of which makes it count.

        Args:
            name: of the step.
            files: names and what writes them, the manifest last.
            on_ready: called before the last one.
        """
        folder, is_whole = self._folder(name), False
        before = folder.names()
        try:
            for place, (file, fill) in enumerate(files):
                if place == len(files) - 1:
                    on_ready(None)
                with folder.create(file) as remote:
                    fill(remote)
            is_whole = True
        finally:
            ours = {file for file, _ in files}
            for file in set(before) - ours if is_whole else ours - {manifests.NAME}:
                if file.endswith(SUFFIX):
                    with suppress(StorageError):  # nobody reads what no manifest names
                        folder.remove(file)
            if not is_whole:
                folder.remove_directory()

    def remove(self, name: str) -> None:
        """Remove a step's folder, its manifest first; files that are not ours stay."""
        folder = self._folder(name)
        with suppress(StorageError):  # the next save tries again
            for file in sorted(folder.names(), key=lambda file: file != manifests.NAME):
                if file == manifests.NAME or file.endswith(SUFFIX):
                    folder.remove(file)
            folder.remove_directory()

    def clean(self) -> None:
        """Do nothing: a folder without a manifest is removed like an old one."""

    def remove_if_empty(self) -> None:
        """Remove the directory itself, unless something is in it."""
        self._root.remove_directory()
