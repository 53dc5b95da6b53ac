"""Arrays in a file: every dtype and shape comes back, the safetensors library reads it, nothing else is believed."""

import io
import json
import struct
import tracemalloc
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.refusals import refused
from tfdist.checkpoint import safetensors_file
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError

DTYPES = [str(dtype) for dtype in safetensors_file._DTYPES.values()]
MOST_BYTES = 4 << 20


def written(given: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    size, checksum = safetensors_file.write(file, safetensors_file.as_arrays(given))
    assert (size, checksum) == (len(file.getvalue()), google_crc32c.value(file.getvalue()))
    return file.getvalue()


def read(data: bytes) -> dict[str, Any]:
    return safetensors_file.read(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (300_001,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2 if dtype == "bool" else 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    array = np.ascontiguousarray(bits).view(np.dtype(dtype)).reshape(shape)
    found = read(written({"x": array, "odd": np.zeros(3, np.bool_)}))["x"]
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, shape, array.tobytes())
    assert not found.flags.writeable


def test_the_library_reads_it() -> None:
    generator = np.random.default_rng(1)
    given = {
        "größe/kernel": generator.normal(size=(3, 5)).astype("f4"),
        "a": generator.normal(size=7).astype("f2"),
        "flags": np.array([True, False, True]),
        "count": np.int64(7),
        "waves": np.array([1 + 2j, -3j], "c8"),
        "none": np.zeros((0, 4)),
        "small": generator.normal(size=3).astype(ml_dtypes.bfloat16),
        "complex": (generator.normal(size=3) * 1j).astype(np.complex64),
    }
    found = dict(safetensors.deserialize(written(given)))
    assert found.keys() == given.keys()
    for name, about in found.items():
        assert bytes(about["data"]) == np.asarray(given[name]).tobytes()
        assert about["shape"] == list(np.shape(given[name]))
    del given["small"]  # NumPy by itself does not know its dtype
    loaded = safetensors.numpy.load(written(given))
    assert {name: (a.dtype, a.tolist()) for name, a in loaded.items()} == {
        name: (np.asarray(a).dtype, np.asarray(a).tolist()) for name, a in given.items()
    }


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        npst.arrays(
            st.sampled_from(["f4", "f8", "i1", "?", ">i4", ">f8", "c8"]), npst.array_shapes(min_dims=0, min_side=0)
        ),
        max_size=6,
    )
)
def test_any_arrays_come_back(given: dict[str, Any]) -> None:
    found = read(written(given))
    assert found.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape
        assert found[name].ctypes.data % array.itemsize == 0


def test_nothing_is_copied_that_lies_as_it_is_written() -> None:
    array = np.zeros((1000, 1000))
    assert np.shares_memory(safetensors_file.as_arrays({"x": array})["x"], array)
    tracemalloc.start()
    try:
        sink = open("/dev/null", "wb", buffering=0)  # noqa: SIM115 - closed below
        safetensors_file.write(sink, {"x": array})
        sink.close()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_lies_otherwise_is_put_in_order() -> None:
    array = np.arange(12.0).reshape(3, 4)
    found = read(written({"turned": array.T, "each": array[:, ::2], "foreign": array.astype(">f8")}))
    assert found["turned"].tolist() == array.T.tolist()
    assert found["each"].tolist() == array[:, ::2].tolist()
    assert found["foreign"].tolist() == array.tolist()


def test_the_middle_is_called_once() -> None:
    for some in ({}, {"x": np.zeros(3)}, {"x": np.zeros(1 << 20), "y": np.zeros(1 << 20)}):
        file, calls = io.BytesIO(), list[int]()
        size, _ = safetensors_file.write(file, some, on_middle=lambda file=file, calls=calls: calls.append(file.tell()))
        assert len(calls) == 1
        assert len(some) < 2 or calls[0] == pytest.approx(size / 2, abs=safetensors_file.PIECE_BYTES)


@pytest.mark.parametrize(
    ("given", "kind", "name", "received"),
    [
        ({"x": np.array(["a"])}, ConfigTypeError, "x", "<U1"),
        ({"x": np.array([None])}, ConfigTypeError, "x", "object"),
        ({"x": np.zeros(1, np.complex128)}, ConfigTypeError, "x", "complex128"),
        ({3: np.zeros(1)}, ConfigTypeError, "arrays", 3),
        ({"__metadata__": np.zeros(1)}, ConfigError, "arrays", "__metadata__"),
        ({"\ud800": np.zeros(1)}, ConfigError, "arrays", "\ud800"),
        ({"a\udfff": np.zeros(1)}, ConfigError, "arrays", "a\udfff"),
        ([np.zeros(1)], ConfigTypeError, "arrays", "[array([0.])]"),
    ],
)
def test_what_cannot_be_written_is_named(given: Any, kind: type[ConfigError], name: str, received: object) -> None:
    with refused(kind, name=name, received=received):
        safetensors_file.as_arrays(given)


def test_names_that_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    some = written({f"{i}": np.zeros(1) for i in range(2)})
    monkeypatch.setattr(safetensors_file, "LARGEST_HEADER", 100)
    with pytest.raises(CorruptDataError):
        read(some)
    with refused(ConfigError, name="arrays", mentions=["560 bytes", "100"]):
        written({f"{i}": np.zeros(1) for i in range(10)})


def file_of(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


ONE = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**64 - 1) + bytes(100),
        file_of(b"[]"),
        file_of(b"{"),
        file_of(b"[" * 100_000),
        file_of(b"\xff\xfe{}"),
        file_of({"x": ONE}),
        file_of({"x": ONE}, bytes(9)),
        file_of({"x": ONE, "__metadata__": {"a": "b"}}, bytes(8)),
        file_of({"x": {**ONE, "data_offsets": [1, 9]}}, bytes(9)),
        file_of({"x": {**ONE, "more": 1}}, bytes(8)),
        file_of({"x": {**ONE, "shape": [2**40, 2**40]}}, bytes(8)),
        file_of({"x": {**ONE, "shape": [2**61]}}, bytes(8)),
        file_of({"x": {**ONE, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
        file_of({"x": {**ONE, "shape": [-1]}}, bytes(8)),
        file_of({"x": {**ONE, "shape": [True]}}, bytes(8)),
        file_of({"x": {**ONE, "shape": [1] * 100}}, bytes(8)),
        file_of({"x": {**ONE, "dtype": "F4"}}, bytes(8)),
        file_of({"x": {**ONE, "dtype": ["F64"]}}, bytes(8)),
        file_of({"x": 3}, bytes(8)),
        file_of({"y": ONE, "x": {**ONE, "data_offsets": [8, 16]}}, bytes(16)),
        file_of(b'{"x":' + json.dumps(ONE).encode() + b"}", bytes(8)),
        file_of(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    ],
)
def test_what_no_writer_made_is_refused(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@settings(max_examples=500, deadline=None, derandomize=True)
@given(data=st.data())
def test_damage_is_refused_or_makes_other_numbers_alone(data: st.DataObject) -> None:
    """Without the checksum, which finds it all: nothing worse may happen than numbers that are others."""
    whole = bytearray(written({"a": np.zeros((2, 3), "f4"), "b": np.int8(1)}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(whole))
    except CorruptDataError:
        return
    assert sum(array.nbytes for array in found.values()) <= len(whole)
