"""MDS shards of MosaicML's streaming: samples of columns, of which index.json has the names and encodings."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files
from tfdist.data.foreign.offset_shards import OffsetShards
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_TEXTS = ("bytes", "str", "json", "jpeg", "png")
_PARSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "str_int": ("int64", lambda text: np.int64(int(text))),
    "str_float": ("float64", float),
}
_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
_DTYPES |= {64: "uint64", 65: "int64", 66: "float64"}
_Ids = NDArray[np.int64]


class MdsShards(OffsetShards):
    """Samples of columns with encodings."""

    def __init__(
        self, files: Files, counts: list[int], encodings: dict[str, str], sizes: dict[str, int | None]
    ) -> None:
        self._encodings = encodings
        super().__init__(files, counts, sizes)

    def _schema(self) -> Schema:
        features = {name: self._feature(name) for name in self._encodings}
        #: bytes of the columns whose values are stored as they are
        self._widths = {
            name: (feature.size or 0) * np.dtype(feature.dtype).itemsize
            for name, feature in features.items()
            if self._encodings[name] in (*_SCALARS, "int") or self._encodings[name].count(":") == 2
        }
        return Schema(features)

    def stored(self) -> dict[str, int | None]:
        texts: dict[str, int | None] = {name: None for name, one in self.schema.items() if one.dtype == TEXT}
        return texts | self._widths

    def places(self, ids: _Ids) -> dict[str, tuple[_Ids, _Ids]]:
        found = {name: place for name, place in self.extents(ids).items() if name in self.stored()}
        for name, width in self._widths.items():
            if (found[name][1] != width).any():
                raise self._odd(ids, found[name][1], name)
        return found

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        extents = self.extents(ids)
        found: Columns = {}
        for name in names:
            feature, encoding = self.schema[name], self._encodings[name]
            begins, sizes = extents[name]
            width = self._widths.get(name)
            if width is not None and (sizes == width).all():
                data = self.arrays_at(ids, begins, width).view(feature.dtype)
                found[name] = data.reshape(len(ids), *(dim or 0 for dim in feature.shape))
                continue
            values = self.bytes_at(ids, begins, sizes)
            if encoding.startswith("ndarray"):
                rows = zip(ids.tolist(), values, strict=True)
                found[name] = self.stacked(name, [self.fitting(row[0], name, self._array(*row, name)) for row in rows])
            elif feature.dtype == TEXT:
                found[name] = values
            elif encoding in _PARSED:
                parsed = [self._parsed(*row, name) for row in zip(ids.tolist(), values, strict=True)]
                found[name] = np.array(parsed, feature.dtype)
            else:
                raise self._odd(ids, sizes, name)
        return found

    def _odd(self, ids: _Ids, sizes: _Ids, name: str) -> CorruptDataError:
        return self.bad(int(ids[sizes != self._widths[name]][0]), f"its {name} is no {self._encodings[name]}.")

    def _parsed(self, number: int, value: bytes, name: str) -> Any:
        try:
            return _PARSED[self._encodings[name]][1](value)
        except (ValueError, OverflowError):
            kind = self.schema[name].dtype
            raise self.bad(number, f"its {name} is {value[:20]!r}, which must be of {kind}.") from None

    def _array(self, number: int, data: bytes, name: str) -> NDArray[Any]:
        _, _, config = self._encodings[name].partition(":")
        dtype, _, dims = config.partition(":")
        try:
            if not dtype:
                dtype, data = _DTYPES[data[0]], data[1:]
            shape = tuple(map(int, dims.split(","))) if dims else None
            if shape is None:
                rank, width = data[0] >> 2, 1 << data[0] % 4
                shape = tuple(np.frombuffer(data[1 : 1 + rank * width], f"<u{width}").tolist())
                data = data[1 + rank * width :]
            return np.frombuffer(data, dtype).reshape(shape)
        except (ValueError, KeyError, IndexError) as error:
            raise self.bad(number, f"its {name} is not an array ({error}).") from None

    def _feature(self, name: str) -> Feature:
        encoding = self._encodings[name]
        kind = encoding.partition(":")[0]
        if kind in _TEXTS:
            return Feature(TEXT, is_image=kind in ("jpeg", "png"))
        if kind != "ndarray":
            return Feature(_PARSED[kind][0] if kind in _PARSED else "int64" if kind == "int" else kind)
        ids = np.arange(min(int(self.begins[-1]), 32))
        arrays = [self._array(number, value, name) for number, value in enumerate(self.rows(ids)[name])]
        same = len({array.shape for array in arrays}) == 1
        if not same and arrays[0].ndim > 1:
            raise ConfigError(
                f"column {name!r} has arrays of {arrays[0].shape} and other shapes; only arrays of one dimension may "
                "differ. Write them flat, with their shape as a column.",
                name=name,
            )
        is_list = arrays[0].ndim == 1 and encoding.count(":") < 2
        return Feature(arrays[0].dtype.name, (None,) if is_list else arrays[0].shape, encoding="raw")


def open_mds(folder: Path) -> MdsShards | None:
    """The shards that index.json of a folder lists; None if it is of something else."""
    index = folder / "index.json"
    try:
        shards = json.loads(index.read_bytes())["shards"]
        if any(shard["format"] != "mds" for shard in shards) or not shards:
            return None
        first = shards[0]
        names = [Path(shard["raw_data"]["basename"]) for shard in shards]
        columns = [dict(zip(shard["column_names"], shard["column_encodings"], strict=True)) for shard in shards]
        sizes = dict(zip(first["column_names"], first["column_sizes"], strict=True))
        counts = [int(shard["samples"]) for shard in shards]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{index} is not an index of MDS: {error!r}", path=str(index)) from error
    if any(name.name != str(name) for name in names):
        raise CorruptDataError(f"{index} names files of other folders.", path=str(index))
    if any(shard.get("compression") for shard in shards) and not all((folder / name).is_file() for name in names):
        raise ConfigError(
            f"{folder} is compressed ({first['compression']}), and nothing can be found in the middle of its files. "
            "Decompress them next to it: zstd -d *.mds.zstd, say.",
            path=str(folder),
        )
    known = {*_SCALARS, *_TEXTS, *_PARSED, "int", "ndarray"}
    for name, encoding in columns[0].items():
        if encoding.partition(":")[0] not in known:
            raise ConfigError(
                f"column {name!r} of {folder} is encoded as {encoding!r}, which is not read: pickles may run any code, "
                f"and others depend on PIL. Write it as one of {', '.join(sorted(known))}.",
                name=name,
                received=encoding,
            )
    if any(other != columns[0] for other in columns):
        raise ConfigError(f"shards of {folder} have unlike columns; all must have the same.", path=str(folder))
    missing = [str(name) for name in names if not (folder / name).is_file()]
    if missing:
        raise CorruptDataError(f"{index} names {missing[0]}, which must be in the folder.", path=str(index))
    return MdsShards(Files([folder / name for name in names], "mds"), counts, columns[0], sizes)
