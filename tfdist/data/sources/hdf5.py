"""HDF5 files through h5py: the datasets of a group are features, their first axis the examples."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import DTYPES, TEXT, Feature, Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import Block, bytes_per_example, examples_per_block
from tfdist.data.sources.stored_columns import column
from tfdist.errors import ConfigError, CorruptDataError, MissingDependencyError, StorageError

_PATH = re.compile(r"(?P<file>.+\.(?:h5|hdf5|hdf|he5))(?::(?P<group>/.*))?", re.IGNORECASE)
_CHUNK_CACHE_BYTES = 64 << 20  # of a dataset, so that a chunk is not decompressed for every block
_ROWS_OF_UNKNOWN = 256
_MOST_DEPTH = 8  # virtual datasets of virtual datasets
_ENDLESS = (1 << 64) - 1  # bytes of an external file that may grow
_REFUSES_FULL_CHUNKS = ((1, 14, 4), (2, 0, 0))  # from this version of HDF5 to before that one


def split(path: str) -> tuple[str, str]:
    found = _PATH.fullmatch(path)
    return (found["file"], found["group"] or "/") if found else (path, "/")


def open_hdf5(path: str, schema: Schema | None) -> "Hdf5":
    where, group = split(path)
    with _opened(where) as file:
        if group not in file:
            raise ConfigError(f"{where} has no group {group!r}; it has {_listed(file)}.", name=group, path=path)
        inside = file[group]
        h5py = _h5py()
        if not isinstance(inside, h5py.Group):
            raise ConfigError(
                f"{group!r} in {where} is a dataset; name the group that it is in.", name=group, path=path
            )
        found = {name: item for name, item in inside.items() if isinstance(item, h5py.Dataset)}
        _check_links(inside, path, schema)
        wanted = found if schema is None else {name: found[name] for name in schema if name in found}
        if missing := [name for name in schema or () if name not in found]:
            raise ConfigError(f"{path} has no dataset {missing[0]!r}; it has {_listed(inside)}.")
        if not wanted:
            raise ConfigError(
                f"{path} has no dataset at this level; it has {_listed(inside)}. Name a group: {where}:/group",
                path=path,
            )
        _check_elsewhere(wanted, where)
        features = {name: _feature(name, item, path) for name, item in wanted.items()}
        lengths = {name: len(item) for name, item in wanted.items()}
    if len(set(lengths.values())) > 1:
        low, high = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise ConfigError(
            f"dataset {high!r} of {path} has {lengths[high]} examples and {low!r} has {lengths[low]}; all must have "
            "the same number, along their first axis. Put what is not an example into another group.",
            name=high,
            received=lengths[high],
            path=path,
        )
    count = next(iter(lengths.values()))
    if not count:
        raise ConfigError(
            f"{path} has no examples in {', '.join(map(repr, lengths))}; at least one is needed.",
            name=", ".join(lengths),
            path=path,
        )
    return Hdf5(where, group, schema or Schema(features), list(found), count)


class Hdf5:
    """The datasets of one group; pickled by the path, opened by the process that reads."""

    seekable = True
    sizes: NDArray[np.int64] | None = None

    def __init__(self, path: str, group: str, schema: Schema, columns: list[str], count: int) -> None:
        self._path, self._group, self.schema, self.columns = path, group, schema, columns
        self.count: int | None = count
        self.identity: dict[str, Any] = {**source_files.identity("hdf5", [path]), "group": group}
        self.identifies = source_files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        end = min(self.count or 0, self.count or 0 if stop is None else stop)
        is_regular = all(feature.dtype != TEXT and feature.size is not None for feature in self.schema.values())
        step = examples_per_block(bytes_per_example(self.schema))
        step = step if is_regular else min(step, _ROWS_OF_UNKNOWN)
        if start >= end:
            return
        with _opened(self._path) as file:
            group = file[self._group]
            _check_elsewhere({name: group[name] for name in self.schema}, self._path)
            for first in range(start, end, step):
                last = min(first + step, end)
                yield {
                    name: column(name, feature, self._values(group, name, first, last), first, f" of {self._path}")
                    for name, feature in self.schema.items()
                }

    def _values(self, group: Any, name: str, first: int, last: int) -> Any:
        try:
            return group[name][first:last]
        except OSError as error:  # a damaged chunk, or a file of a virtual dataset that is shorter
            _check_scale_offset(group[name], f"{self._path}: examples {first} to {last - 1} of {name!r}", error)
            raise CorruptDataError(
                f"{self._path}: examples {first} to {last - 1} of {name!r} cannot be read: {error}", path=self._path
            ) from error


def _feature(name: str, item: Any, path: str) -> Feature:
    h5py = _h5py()
    if item.shape is None or item.ndim == 0:
        raise ConfigError(
            f"dataset {name!r} of {path} has no axis of examples; put it into another group.", name=name, path=path
        )
    if h5py.check_string_dtype(item.dtype) is not None:
        return Feature(TEXT, item.shape[1:])
    inner = h5py.check_vlen_dtype(item.dtype)
    dtype, shape = (np.dtype(inner), (None,)) if inner is not None else (item.dtype, item.shape[1:])
    if dtype.name not in DTYPES or (inner is not None and item.ndim > 1):
        raise ConfigError(
            f"dataset {name!r} of {path} is {item.dtype} of shape {item.shape}; it must be one of {', '.join(DTYPES)}, "
            "or one list of any length per example. Convert it, or pass a schema without it.",
            name=name,
            received=str(item.dtype),
            path=path,
        )
    return Feature(dtype.name, shape)


def _check_links(group: Any, path: str, schema: Schema | None) -> None:
    """Refuse links that lead nowhere: their datasets would be missing silently."""
    h5py = _h5py()
    for name in group if schema is None else [name for name in schema if name in group]:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.HardLink) or group.get(name) is not None:
            continue
        target = f"{link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else link.path
        raise ConfigError(
            f"{name!r} in {path} is a link to {target}, where nothing is. Put the file there, or pass a schema without "
            f"{name!r}.",
            name=name,
            received=target,
            path=path,
        )


def _check_elsewhere(datasets: dict[str, Any], path: str) -> None:
    """Refuse datasets with a missing part in other files: HDF5 fills its rows with zeros and reports nothing."""
    for name, item in datasets.items():
        if (lacking := _lacking(item, path, _MOST_DEPTH)) is not None:
            file, what = lacking
            raise ConfigError(
                f"{name!r} in {path} takes values from {file}, {what}; HDF5 would return the fill value. Put the file "
                f"beside {path}, or pass a schema without {name!r}.",
                name=name,
                received=file,
                path=path,
            )


def _lacking(item: Any, path: str, depth: int) -> tuple[str, str] | None:
    """A file that a dataset takes values from and that is not whole, and what is wrong with it."""
    for file, offset, size in item.external or ():
        found = file if os.path.isfile(file) else _elsewhere(file, path)
        there = -1 if found is None else os.path.getsize(found)
        if there < offset + (0 if size == _ENDLESS else size):
            return file, "which is not there" if there < 0 else f"which has {there} bytes of {offset + size}"
    for source in item.virtual_sources() if item.is_virtual and depth else ():
        if source.file_name == ".":
            file, inner = path, item.file.get(source.dset_name)
            lacking = (file, f"whose dataset {source.dset_name!r} is not there") if inner is None else None
            lacking = lacking or _lacking(inner, path, depth - 1)
        elif "%b" in source.file_name:
            lacking = _gap(source.file_name, path)
        else:
            lacking = _lacking_in(source.file_name, source.dset_name, path, depth)
        if lacking is not None:
            return lacking
    return None


def _lacking_in(file: str, dataset: str, path: str, depth: int) -> tuple[str, str] | None:
    found = _elsewhere(file, path)
    if found is None:
        return file, "which is not there"
    with _opened(found) as other:
        if dataset not in other:
            return file, f"whose dataset {dataset!r} is not there"
        return _lacking(other[dataset], found, depth - 1)


def _elsewhere(file: str, path: str) -> str | None:
    """The path of a file that an HDF5 file names, beside that one or from where the process is; None without one."""
    if source_files.is_url(path):  # HDF5 looks for the file on this machine
        return None
    beside = os.path.join(os.path.dirname(path), file)
    return next((one for one in (beside, file) if os.path.isfile(one)), None)


def _gap(pattern: str, path: str) -> tuple[str, str] | None:
    """The first missing file of a series, whose files HDF5 counts up to there."""
    folder = os.path.dirname(os.path.join(os.path.dirname(path), pattern)) or "."
    name = re.compile(re.escape(os.path.basename(pattern)).replace(re.escape("%b"), r"(\d+)"))
    listed = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = {int(found[1]) for found in map(name.fullmatch, listed) if found}
    first = next((number for number in range(len(numbers) + 1) if number not in numbers), 0)
    if numbers and first > max(numbers):
        return None
    return pattern.replace("%b", str(first)), "which is not there"


def _check_scale_offset(item: Any, what: str, error: OSError) -> None:
    """Report an HDF5 that cannot read what it wrote, as another fault than damaged data."""
    version = _h5py().version
    first, fixed = _REFUSES_FULL_CHUNKS
    if item.scaleoffset is not None and first <= version.hdf5_version_tuple < fixed:
        raise MissingDependencyError(
            f"{what} cannot be read: {error}. They have the scale-offset filter, of which HDF5 {version.hdf5_version} "
            f"(h5py {version.version}) cannot read chunks whose values need all bits of their type. HDF5 2.0 can. Run: "
            "python -m pip install 'h5py>=3.16'",
            name="h5py",
            path=item.file.filename,
        ) from error


def _listed(group: Any) -> str:
    names = [f"{name}{'' if hasattr(item, 'dtype') else '/'}" for name, item in group.items()]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "nothing"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    h5py = _h5py()
    with contextlib.ExitStack() as stack:
        try:
            handle: Any = stack.enter_context(source_files.opened(path)) if source_files.is_url(path) else path
            file = h5py.File(handle, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)
        except FileNotFoundError as error:
            raise ConfigError(f"source is {path!r}; there is no such file.") from error
        except StorageError:
            raise
        except OSError as error:
            raise CorruptDataError(f"{path} cannot be read as HDF5: {error}", path=path) from error
        yield stack.enter_context(file)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError(
            f"HDF5 files need h5py, which cannot be imported ({error}). Run: python -m pip install 'tfdist[formats]'",
            name="h5py",
        ) from error
    return h5py
