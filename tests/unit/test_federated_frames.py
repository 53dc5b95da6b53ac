"""Frames of federated messages: what goes in comes out, and whatever else arrives is an error of one kind."""

import contextlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from tests.refusals import refused
from tfdist.errors import ConfigTypeError
from tfdist.federated.transport.array_frames import HEAD, FrameError, pack, read_head, unpack

DTYPES = st.sampled_from(["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"])
ARRAYS = DTYPES.flatmap(
    lambda kind: np_st.arrays(kind, np_st.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary() | ARRAYS
NAMES = st.text().filter(lambda name: name != "$")
TREES = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8), max_size=4
)


def frame(message: dict[str, Any]) -> bytes:
    return b"".join(pack(message))


def read(data: bytes, largest: int = 1 << 20) -> dict[str, Any]:
    begin, length = read_head(data[: HEAD.size], largest=largest)
    body = data[HEAD.size + begin :]
    assert len(body) == length
    return unpack(data[HEAD.size :][:begin], body)


def same(left: Any, right: Any) -> bool:
    """Equal with types, shapes, and NaN."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return type(left) is type(right) and (left == right or (left != left and right != right))


@settings(max_examples=30)
@given(TREES)
def test_messages_come_out_as_they_went_in(message: dict[str, Any]) -> None:
    assert same(message, read(frame(message)))


def test_weights_of_bfloat16_come_out_as_they_went_in() -> None:
    for shape in ((), (0,), (3, 2)):
        assert same({"x": np.full(shape, 1.5, ml_dtypes.bfloat16)}, read(frame({"x": np.full(shape, 1.5, "bfloat16")})))


@settings(max_examples=30)
@given(TREES, st.data())
def test_changed_frames_are_errors_of_one_kind(message: dict[str, Any], data: st.DataObject) -> None:
    """A byte changed, removed or added: it is a frame error, or another message."""
    header, *buffers = pack(message)[1:]
    body = b"".join(buffers)
    place = data.draw(st.integers(0, len(header) - 1))
    change = data.draw(st.sampled_from([header[place : place + 1] * 2, b"", bytes([data.draw(st.integers(0, 255))])]))
    with contextlib.suppress(FrameError):
        assert isinstance(unpack(header[:place] + change + header[place + 1 :], body), dict)
    with pytest.raises(FrameError):
        unpack(header, body + b"12345678")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"1",
        b"[]",
        b"[{},{}]",
        b"[[],[]]",
        b'[{"x":{"$":0}},[]]',
        b'[{"x":{"$":-1}},[["<f4",[2]]]]',
        b'[{"x":{"$":true}},[["<f4",[2]]]]',
        b'[{},[["O",[1]]]]',
        b'[{},[["<f4",[-2]]]]',
        b'[{},[["<f4",[2.0]]]]',
        b'[{},[["<f4",[3]]]]',
        b'[{},[["<f8",[]],["<f4",[1]]]]',
        b'[{},[["<f4",2]]]',
        b'[{},[["<f4"]]]',
        b'[{},[["<f4",[4294967296,4294967296,4294967296]]]]',
        b'[{},[["bytes",[2,4]]]]',
        b'[{},[[["<f4"],[2]]]]',
        b'[{},[["<f4",[' + b",".join([b"1"] * 33) + b"]]]]",
        b"[" * 100_000,
        b"\xff\xfe",
        b"9" * 5000,
    ],
)
def test_headers_that_lie_are_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(header, bytes(8))


def test_lengths_are_refused_before_anything_is_read() -> None:
    for head in (HEAD.pack(b"GET ", 1, 1), HEAD.pack(b"tff1", 1, 1001), HEAD.pack(b"tff1", 1 << 31, 0)):
        with pytest.raises(FrameError):
            read_head(head, largest=1000)
    assert read_head(HEAD.pack(b"tff1", 4096, 1000), largest=1000) == (4096, 1000)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"$": 1}, np.array(["a"]), np.array([1j]), np.array([None]), {1}])
def test_what_no_frame_can_hold_is_refused_by_its_sender(value: Any) -> None:
    with refused(ConfigTypeError):
        pack({"value": value})


def test_arrays_are_not_copied_and_read_only() -> None:
    array = np.arange(1000, dtype=np.float32)
    sent = pack({"x": array})[2]
    assert np.shares_memory(np.asarray(sent), array)
    found = read(frame({"x": array.reshape(10, 100)[:, ::2], "y": array.astype(">f8")}))
    assert (found["x"] == array.reshape(10, 100)[:, ::2]).all()
    assert found["y"].dtype == "<f8"
    assert not found["x"].flags.writeable


def test_a_frame_is_no_pickle() -> None:
    assert json.loads(pack({"x": np.zeros(1)})[1]) == [{"x": {"$": 0}}, [["<f8", [1]]]]
