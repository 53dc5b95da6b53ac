"""Chunks of LitData: the leaves of items are features, and index.json has their names and formats."""

import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files
from tfdist.data.foreign.offset_shards import OffsetShards
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError

_NUMBERS = {"int": "int64", "float": "float64", "bool": "bool"}
_TEXTS = frozenset({"str", "text", "bytes", "json", "jpeg", "image", "tifffile", "file", "video", "audio", "pdf"})
_PICTURES = ("jpeg", "image:jpg", "image:jpeg", "image:png", "image:gif", "image:bmp", "image:webp")
# later codes of NumPy differ between releases of LitData; those of PyTorch that have no dtype of NumPy are left out
_NUMPY = dict(
    enumerate("int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())  # noqa: SIM905
)
_TORCH = {0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8"}
_TORCH |= {13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16"}
_CODES = {"numpy": _NUMPY, "no_header_numpy": _NUMPY, "tensor": _TORCH, "no_header_tensor": _TORCH}
_SAMPLE = 32
_MOST_RANK = 255
_Ids = NDArray[np.int64]


class LitChunks(OffsetShards):
    """The items of LitData chunks, as leaves; an item of a TokensLoader is one list without a head."""

    def __init__(self, files: Files, counts: list[int], formats: dict[str, str], *, are_tokens: bool) -> None:
        self._formats, self._are_tokens = formats, are_tokens
        super().__init__(files, counts, dict.fromkeys(formats))

    def _schema(self) -> Schema:
        return Schema({name: self._feature(name) for name in self._formats})

    def rows(self, ids: _Ids) -> dict[str, list[bytes]]:
        return dict.fromkeys(self._formats, self.samples(ids)) if self._are_tokens else super().rows(ids)

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        rows = self.rows(ids)
        return {name: self._column(ids, rows[name], name) for name in names}

    def lengths(self, name: str) -> _Ids:
        if not self._are_tokens:
            return super().lengths(name)
        _, sizes = self._places(np.arange(len(self)))
        return sizes // np.dtype(self.schema[name].dtype).itemsize

    def _column(self, ids: _Ids, values: list[bytes], name: str) -> Any:
        feature = self.schema[name]
        if feature.dtype == TEXT:
            return values
        if self._formats[name] in _NUMBERS:
            width = np.dtype(feature.dtype).itemsize
            for number, value in zip(ids.tolist(), values, strict=True):
                if len(value) != width:
                    raise self.bad(number, f"its {name} has {len(value)} bytes; {feature.dtype} has {width}.")
            return np.frombuffer(b"".join(values), feature.dtype)
        rows = zip(ids.tolist(), values, strict=True)
        return self.stacked(name, [self.fitting(row[0], name, self._array(*row, name)) for row in rows])

    def _array(self, number: int, data: bytes, name: str) -> NDArray[Any]:
        kind, _, code = self._formats[name].partition(":")
        try:
            if code:
                return np.frombuffer(data, _CODES[kind][int(code)])
            order = _order(data)
            which, rank = struct.unpack_from(f"{order}2I", data)
            shape = struct.unpack_from(f"{order}{rank}I", data, 8)
            dtype = np.dtype(_CODES[kind][which])
            return np.frombuffer(data, dtype, math.prod(shape), 8 + 4 * rank).reshape(shape)
        except (ValueError, KeyError, struct.error) as error:
            raise self.bad(number, f"its {name} is not an array ({error!r}).") from None

    def _feature(self, name: str) -> Feature:
        form = self._formats[name]
        if form in _NUMBERS:
            return Feature(_NUMBERS[form])
        if form.partition(":")[0] in _TEXTS:
            return Feature(TEXT, is_image=form in _PICTURES)
        ids = np.arange(min(int(self.begins[-1]), _SAMPLE))
        arrays = [self._array(number, value, name) for number, value in enumerate(self.rows(ids)[name])]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1 and arrays[0].ndim > 1:
            raise ConfigError(
                f"feature {name!r} has arrays of {arrays[0].shape} and other shapes; only arrays of one dimension may "
                "differ. Write them flat, with their shape as another leaf.",
                name=name,
            )
        is_list = arrays[0].ndim == 1 and ":" in form
        return Feature(arrays[0].dtype.name, (None,) if is_list else arrays[0].shape, encoding="raw")


def _order(data: bytes) -> str:
    """Return the byte order of an array's head: later releases of LitData write the heads of tensors big-endian."""
    return ">" if len(data) >= 8 and max(struct.unpack_from(">2I", data)) <= _MOST_RANK else "<"


def open_litdata(folder: Path) -> LitChunks:
    """Return the chunks that index.json of a folder lists."""
    index = folder / "index.json"
    try:
        found = json.loads(index.read_bytes())
        chunks, config = found["chunks"], found["config"]
        names = [Path(chunk["filename"]) for chunk in chunks]
        counts = [int(chunk["chunk_size"]) for chunk in chunks]
        sizes = [int(chunk["chunk_bytes"]) for chunk in chunks]
        formats = [str(one) for one in config["data_format"]]
        spec = json.loads(config["data_spec"])[1]
        loader = config.get("item_loader") or "PyTreeLoader"
        leaves = ["tokens"] if loader == "TokensLoader" else _leaves(spec, "")
        features = dict(zip(leaves, formats, strict=True))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptDataError(f"{index} is not an index of LitData: {error!r}", path=str(index)) from error
    for setting in ("compression", "encryption"):
        if config.get(setting):
            raise ConfigError(
                f"{folder} has {setting} ({config[setting]}), and nothing can be found in the middle of its files. "
                f"Optimize it anew without {setting}.",
                path=str(folder),
            )
    if loader not in ("PyTreeLoader", "TokensLoader"):
        raise ConfigError(f"{folder} is for {loader}; chunks of PyTreeLoader and TokensLoader are read.")
    for name, form in features.items():
        kind, _, code = form.partition(":")
        is_known = (
            kind in _NUMBERS or kind in _TEXTS or (kind in _CODES and (not code or code in map(str, _CODES[kind])))
        )
        if not is_known:
            raise ConfigError(
                f"leaf {name!r} of {folder} is stored as {form!r}, which is not read: pickles may run any code, and "
                f"others depend on PyTorch or PIL. Read are numbers, arrays, and {', '.join(sorted(_TEXTS))}.",
                name=name,
                received=form,
            )
    if any(chunk.name != str(chunk) for chunk in names):
        raise CorruptDataError(f"{index} names files of other folders.", path=str(index))
    for chunk, size in zip(names, sizes, strict=True):
        path = folder / chunk
        there = path.stat().st_size if path.is_file() else -1
        if there != size:
            said = "must be in the folder" if there < 0 else f"has {there} bytes, and must have {size}"
            raise CorruptDataError(f"{index} names {chunk}, which {said}.", path=str(path))
    files = Files([folder / name for name in names], "litdata")
    return LitChunks(files, counts, features, are_tokens=loader == "TokensLoader")


def _leaves(spec: Any, path: str) -> list[str]:
    """Return the names of the leaves in order; nested leaves have a path such as `box.left`."""
    children = spec["children_spec"]
    if spec["type"] is None:
        return [path or "value"]
    context = json.loads(spec["context"]) if spec["context"] else None
    keys = context if isinstance(context, list) and len(context) == len(children) else range(len(children))
    inner = zip(keys, children, strict=True)
    return [leaf for key, child in inner for leaf in _leaves(child, f"{path}.{key}" if path else str(key))]
