"""Arrays in memory and in NumPy's files, with examples along the first axis.

The members of an archive (.npz) are features; a single array (.npy) is one, named by its file. Nothing is unpickled. An
.npy file is mapped into memory; an archive is loaded whole, once in every process that reads.
"""

import contextlib
import copy
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.schema import TEXT, Feature, Schema, as_array, feature_of
from tfdist.data.sources import compressed_files, source_files
from tfdist.data.sources.protocol import Block, bytes_per_example, examples_per_block, weight
from tfdist.data.sources.stored_columns import column, inferred_feature, is_masked, named
from tfdist.errors import ConfigError, CorruptDataError, TfdistError

_DIGEST_BYTES = 8 << 20  # of an array; of a larger one as many, in pieces spread over it
_DIGEST_PIECES = 64
_DIGEST_OF_VALUE = 4096  # bytes of each text
_CURE = "Save its arrays as .npy files, which are not read into memory as a whole."


def open_arrays(examples: Any, schema: Schema | None, identity: dict[str, Any] | None = None) -> "Arrays":
    if isinstance(examples, np.ndarray) and examples.dtype.names:
        examples = {name: examples[name] for name in examples.dtype.names}
    given = named(examples)
    arrays = {name: _array(name, values) for name, values in given.items()}
    count = _count(arrays)
    found = schema or Schema({name: _feature(name, arrays[name], given[name]) for name in arrays})
    if schema is None:  # floats of Python that float32 holds with all their digits
        for name, array in arrays.items():
            if not hasattr(given[name], "dtype") and array.dtype.kind == "f":
                arrays[name] = array.astype(found[name].dtype, copy=False)
    if found.keys() != arrays.keys():
        raise ConfigError(
            f"the arrays are {_names(arrays)}; the schema has {_names(found)}. Both must have the same names."
        )
    return Arrays(found, arrays, count, identity)


class Arrays:
    """Examples in arrays: a `Source` that is pickled together with the arrays."""

    seekable = True

    def __init__(
        self, schema: Schema, arrays: dict[str, NDArray[Any]], count: int, identity: dict[str, Any] | None
    ) -> None:
        self.schema, self._arrays = schema, arrays
        self.count: int | None = count
        self._first = 0  # the number of the first example that the arrays have
        self.sizes: NDArray[np.int64] | None = _sizes(schema, arrays, count)
        self.identity: dict[str, Any] = identity or {
            "kind": "arrays",
            "columns": {name: [str(a.dtype), list(a.shape), _digest(a)] for name, a in sorted(arrays.items())},
        }
        self.identifies = identity is not None or all(
            array.dtype.kind != "O" and array.nbytes <= _DIGEST_BYTES for array in arrays.values()
        )

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; arrays that have the right dtype already are not copied."""
        end = min(self.count or 0, self.count or 0 if stop is None else stop)
        at = start
        while at < end:
            last = min(end, at + self._rows(at))
            rows = slice(at - self._first, last - self._first)
            yield {name: column(name, feature, self._arrays[name][rows], at) for name, feature in self.schema.items()}
            at = last

    def part(self, start: int, stop: int) -> "Arrays":
        """Return a source with the arrays of these examples alone."""
        found, rows = copy.copy(self), slice(start - self._first, stop - self._first)
        found._first, found._arrays = start, {name: array[rows] for name, array in self._arrays.items()}
        found.sizes = None if self.sizes is None else self.sizes[rows]
        return found

    def _rows(self, at: int) -> int:
        if self.sizes is None:
            return examples_per_block(bytes_per_example(self.schema))
        ahead = self.sizes[at - self._first : at - self._first + 1024]
        return examples_per_block(int(ahead.max()), len(ahead))


def _sizes(schema: Schema, arrays: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.int64] | None:
    differing = [arrays[name] for name, feature in schema.items() if feature.dtype == TEXT or feature.size is None]
    if not differing:
        return None
    sizes = np.full(count, bytes_per_example(schema), np.int64)
    for array in differing:
        sizes += np.fromiter((weight(value) for value in array), np.int64, count)
    return sizes


def _array(name: str, values: Any) -> NDArray[Any]:
    """Return the values as an array, one per example: of objects for text and for lists of several lengths."""
    if is_masked(values):
        raise ConfigError(
            f"feature {name!r} has {np.ma.count_masked(values)} masked values; an example has a value for every "
            f"feature. Give them one with .filled(value), or leave these examples out.",
            name=name,
        )
    nulls = getattr(values, "null_count", 0)  # of columns of Arrow or polars, of which NumPy would make NaN
    if hasattr(getattr(values, "dtype", None), "na_value"):  # one of pandas' own dtypes
        nulls = values.isna()
    if count := int(np.asarray(nulls() if callable(nulls) else nulls).sum()):
        raise ConfigError(
            f"feature {name!r} has {count} nulls; fill them, or pass the columns as one table (pyarrow.table({{...}})) "
            "and say in nulls what replaces them.",
            name=name,
            received=count,
        )
    if hasattr(values, "dtype"):
        array = np.asarray(values)
        return array.astype(object) if array.dtype.kind == "T" else array
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], (bytes, str)):
        # not as NumPy's text, in which each takes as much as the longest
        return np.fromiter(values, object, len(values))
    try:
        array = as_array(values)
    except ValueError:  # lists of several lengths
        array = np.array(None)
    if array.dtype.kind in "SUO" or array.ndim == 0:
        if not isinstance(values, (list, tuple)):
            raise validation.mismatch(f"feature {name!r}", values, "an array, examples first.", name=name)
        nested = _nested(values)
        return np.fromiter(values, object, len(values)) if nested is None else nested
    return array


def _nested(values: Any) -> NDArray[np.object_] | None:
    try:
        array = np.array(values, dtype=object)
    except ValueError:
        return None
    return array if array.ndim and all(isinstance(item, (str, bytes)) for item in array.flat) else None


def _count(arrays: Mapping[str, NDArray[Any]]) -> int:
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        if array.ndim == 0:
            required = "an array with one value per example."
            raise validation.mismatch(f"feature {name!r}", array.item(), required, name=name)
        lengths[name] = len(array)
    if len(set(lengths.values())) > 1:
        first, one = next(iter(lengths.items()))
        other, two = next((name, n) for name, n in lengths.items() if n != one)
        raise ConfigError(
            f"feature {first!r} has {one} examples and feature {other!r} has {two}; all must have the same "
            "number, along their first axis.",
            name=other,
            received=two,
        )
    if not any(lengths.values()):
        raise ConfigError(
            f"the arrays {_names(arrays)} have no examples; at least one is needed.",
            name="examples",
            received=", ".join(arrays),
        )
    return next(iter(lengths.values()))


def _feature(name: str, array: NDArray[Any], given: Any) -> Feature:
    if array.dtype.kind in "SU":
        return Feature(TEXT, array.shape[1:])
    if array.dtype.kind != "O":
        found = feature_of(name, array[:1] if hasattr(given, "dtype") or array.dtype.kind != "f" else array.tolist())
        return Feature(found.dtype, array.shape[1:])
    if array.ndim > 1:
        return feature_of(name, array[0])
    first = feature_of(name, array[0])
    first = first if first.dtype == TEXT else inferred_feature(name, array)
    if first.shape == ():
        return first
    shapes = {np.shape(value) for value in array}
    return first if shapes == {first.shape} else Feature(first.dtype, (None,))


def _digest(array: NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if array.dtype.kind == "O":
        for value in array.flat[:: max(1, array.size // 10_000)]:
            content = _content(value)
            digest.update(b"%d:" % len(content) + content[:_DIGEST_OF_VALUE])
        return digest.hexdigest()
    if array.nbytes <= _DIGEST_BYTES:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        return digest.hexdigest()
    rows = max(1, len(array) * (_DIGEST_BYTES // _DIGEST_PIECES) // array.nbytes)
    for first in np.linspace(0, max(0, len(array) - rows), _DIGEST_PIECES).astype(int):
        digest.update(np.ascontiguousarray(array[first : first + rows]).view(np.uint8).data)
    return digest.hexdigest()


def _content(value: Any) -> bytes:
    if isinstance(value, (bytes, np.ndarray)):
        return value if isinstance(value, bytes) else value.tobytes()
    return (value if isinstance(value, str) else repr(value)).encode(errors="surrogatepass")


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))


class Archive:
    """Archives and .npy files, read when they are needed; pickled by their paths."""

    seekable = True

    def __init__(self, paths: Sequence[str], schema: Schema | None) -> None:
        self._paths, arrays = list(paths), open_arrays(_load(paths), schema, source_files.identity("numpy", paths))
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
                f"{path} is not an array or archive of NumPy's, or was cut off: {error}", path=path
            ) from error
    name = os.path.splitext(source_files.name_of(path))[0]
    return {field: loaded[field] for field in loaded.dtype.names} if loaded.dtype.names else {name: loaded}
