"""NumPy's files: the members of an archive (.npz) are features; a single array (.npy) is one, named by its file.

Nothing is unpickled. An .npy file is mapped into memory; an archive is loaded whole, once in every process that reads.
"""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import Schema
from tfdist.data.sources import compressed_files, source_files
from tfdist.data.sources.array_source import Arrays, open_arrays
from tfdist.data.sources.protocol import Block
from tfdist.errors import ConfigError, CorruptDataError, TfdistError

_CURE = "Save its arrays as .npy files, which are not read into memory as a whole."


def open_numpy(paths: Sequence[str], schema: Schema | None = None) -> "Archive":
    """Archives and .npy files as a source; one array is named after its file, a structured one has its own features."""
    return Archive(list(paths), schema)


class Archive:
    """Arrays in files, read when they are needed; pickled by their paths."""

    seekable = True

    def __init__(self, paths: list[str], schema: Schema | None) -> None:
        self._paths, arrays = paths, open_arrays(_load(paths), schema, source_files.identity("numpy", paths))
        self._arrays: Arrays | None = arrays
        self.schema, self.count, self.identity = arrays.schema, arrays.count, arrays.identity
        self.identifies = source_files.are_stamped(self.identity)
        self.sizes: NDArray[np.int64] | None = arrays.sizes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        if self._arrays is None:
            self._arrays = open_arrays(_load(self._paths), self.schema, self.identity)
        return self._arrays.blocks(start, stop)


def _load(paths: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths:
        arrays = _read(path)
        if twice := found.keys() & arrays.keys():
            raise ConfigError(f"two files have the feature {min(twice)!r}, the second is {path}; rename one.")
        found.update(arrays)
    if not found:
        raise ConfigError(f"{paths[0]} has no arrays; at least one is needed.")
    return found


def _member(archive: Any, name: str, path: str) -> Any:
    for info in archive.zip.infolist():
        if info.filename in (name, f"{name}.npy"):
            compressed_files.require_room(f"array {name!r} of {path}", info.file_size, _CURE)
    try:
        return archive[name]
    except MemoryError as error:
        raise compressed_files.no_room(f"array {name!r} of {path}", _CURE) from error


def _read(path: str) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        try:
            is_mapped = path.lower().endswith(".npy") and not source_files.is_url(path)
            handle: Any = path if is_mapped else stack.enter_context(source_files.opened(path))
            loaded = np.load(handle, mmap_mode="r" if is_mapped else None, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                stack.enter_context(loaded)
                return {name: _member(loaded, name, path) for name in loaded.files}
        except FileNotFoundError as error:
            raise ConfigError(f"source is {path!r}; there is no such file.") from error
        except TfdistError:
            raise
        except MemoryError as error:
            raise compressed_files.no_room(path, _CURE) from error
        except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            if "Object arrays" in str(error) or "Python objects" in str(error):
                raise ConfigError(
                    f"{path} holds an array of objects, which is a pickle and could run anything; none is read. Save "
                    "it as numbers, or text as an array with a dtype such as 'U20'.",
                    path=path,
                ) from error
            raise CorruptDataError(
                f"{path} is no array or archive of NumPy's, or was cut off: {error}", path=path
            ) from error
    name = os.path.splitext(source_files.name_of(path))[0]
    return {field: loaded[field] for field in loaded.dtype.names} if loaded.dtype.names else {name: loaded}
