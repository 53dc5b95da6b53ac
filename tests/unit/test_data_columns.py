"""Values -> columns: what is kept, what is refused, and that the message has the example's index."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.data.format import example
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources.stored_columns import block, cast, column, named
from tfdist.errors import ConfigError, ConfigTypeError

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [1, -2, 3]),
        ("int64", [True, 2]),
        ("uint64", [0, 2**64 - 1]),
        ("uint64", [np.uint64(2**63), 5]),
        ("int64", [-(2**63), 2**63 - 1]),
        ("float32", [1, 2**24, -3]),
        ("float32", [1, 2.5]),
        ("float32", [0.1, float("nan"), float("inf")]),
        ("float64", np.array([1, 2], ">i4")),
        ("bool", [True, False]),
        ("bool", np.array([0, 1], "uint8")),
        ("uint8", np.array([0, 255], ">i8")),
        ("float16", np.array([1.5, 2.5], "float64")),
    ],
)
def test_what_a_dtype_holds_is_kept(dtype: str, values: Any) -> None:
    found = column("x", Feature(dtype), values)
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.array(list(values), dtype))


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        ("int64", 2.0),
        ("int64", "1"),
        ("int64", None),
        ("int64", 2**63),
        ("int64", np.uint64(2**63)),
        ("uint8", -1),
        ("uint8", 256),
        ("bool", 2),
        ("bool", 1.0),
        ("float32", 2**24 + 1),
        ("float32", 2**63 - 1),
        ("float32", 1e300),
        ("float32", 10**400),
        ("float64", 2**53 + 1),
        ("float32", np.datetime64("2020-01-01")),
        ("float32", 1j),
        ("float32", [1.0]),
        ("float32", np.zeros(1)),
        ("float32", np.ma.masked_array(1.0, mask=True)),
        ("string", 5),
        ("string", ["a"]),
        ("string", "\ud800"),
    ],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_what_it_does_not_hold_is_refused_by_index(dtype: str, bad: Any, as_array: bool) -> None:
    good: Any = "a" if dtype == "string" else np.dtype(dtype).type(1)
    values = [good, good, good, bad, good]
    if as_array:
        values, given = np.empty(5, object), values
        values[:] = given
    with refused(ConfigError, name="x", path="a.csv", mentions=["Example 103", dtype.replace("string", "text")]):
        column("x", Feature(dtype), values, 100, " of a.csv")


@settings(deadline=None)
@given(
    kind=st.sampled_from(INTEGERS),
    dtype=st.sampled_from([*INTEGERS, "bool", "float16", "float32", "float64"]),
    data=st.data(),
)
def test_a_cast_keeps_values_or_names_them(kind: str, dtype: str, data: st.DataObject) -> None:
    info = np.iinfo(kind)
    edges = [v for k in INTEGERS for v in (np.iinfo(k).min, np.iinfo(k).max) if info.min <= v <= info.max]
    values = data.draw(st.lists(st.integers(info.min, info.max) | st.sampled_from(edges), min_size=1, max_size=8))
    result, wrong = cast(np.array(values, kind), Feature(dtype))
    flags = [False] * len(values) if wrong is None else wrong.tolist()
    for value, kept, is_wrong in zip(values, result.tolist(), flags, strict=True):
        if not is_wrong:
            assert int(kept) == value
        elif dtype.startswith("float"):
            with np.errstate(over="ignore"):
                rounded = float(np.dtype(dtype).type(value))
            assert not np.isfinite(rounded) or int(rounded) != value
        else:
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            assert not low <= value <= high


def test_the_first_wrong_value_of_an_array_is_named() -> None:
    values = np.zeros((10, 3), "int64")
    values[7, 1] = 300
    values[9, 0] = 300
    with refused(ConfigError, name="x", received="array([  0, 300,   0])", path=None, mentions=["Example 27"]):
        column("x", Feature("uint8", (3,)), values, 20)


def test_lists_of_any_length() -> None:
    feature = Feature("int32", (None,))
    for values in ([[1, 2], [], [3]], [np.array([1, 2], "int8"), np.array([], "int8"), np.array([3], "int8")]):
        found = column("x", feature, values)
        assert [(row.tolist(), row.dtype.name) for row in found] == [([1, 2], "int32"), ([], "int32"), ([3], "int32")]
    for bad in ([[1]], 5, [2**40], [1.5], "12"):
        with refused(ConfigError, name="x", received=repr(bad), mentions=["Example 1", "list of int32"]):
            column("x", feature, [[1], bad, [2]])
    with refused(ConfigError, name="x", received="array([1099511627776])", mentions=["Example 1"]):
        column("x", feature, [np.array([1]), np.array([2**40])])


def test_text_is_utf8_and_keeps_every_byte() -> None:
    values = ["ä\0", b"\0\0", bytearray(b"x\0"), memoryview(b""), np.str_("é"), np.bytes_(b"q"), np.array("z", object)]
    expected = ["ä\0".encode(), b"\0\0", b"x\0", b"", "é".encode(), b"q", b"z"]
    assert column("x", Feature("string"), values) == expected
    rows = column("x", Feature("string", (2,)), [["a\0", b"b\0"], np.array(["c", "d"], object)])
    assert [row.tolist() for row in rows] == [[b"a\0", b"b\0"], [b"c", b"d"]]
    rows = column("x", Feature("string", (None,)), [["a"], [], ("b\0", "c")])
    assert [row.tolist() for row in rows] == [[b"a"], [], [b"b\0", b"c"]]
    with refused(ConfigError, name="x", received=["c"], mentions=["Example 1", "(2,)"]):
        column("x", Feature("string", (2,)), [["a", "b"], ["c"]])
    with refused(ConfigError, name="x", received="'abc'", mentions=["Example 0"]):
        column("x", Feature("string", (None,)), ["abc"])


def test_shapes_must_fit_and_the_way_out_is_said() -> None:
    with refused(ConfigError, name="x", received=[1.0], mentions=["Example 1", "(None,)"]):
        column("x", Feature("float32", (2,)), [[1.0, 2.0], [1.0]])
    with refused(ConfigError, name="x", mentions=["Example 0", "(2, 3)", "(2, 2)"]):
        column("x", Feature("float32", (2, 2)), np.zeros((3, 2, 3)))
    with refused(ConfigError, name="x", received=[[1, 2], [3]], mentions=["Example 2"]):
        column("x", Feature("float32", (2, 2)), [np.zeros((2, 2)), np.zeros((2, 2)), [[1, 2], [3]]])
    with refused(ConfigError, name="x", received=[2**53 + 1, 0.5], mentions=["Example 1"]):
        column("x", Feature("float64", (2,)), [[1, 0.5], [2**53 + 1, 0.5]])


def test_features_that_are_missing_or_too_many() -> None:
    schema = Schema({"x": Feature("int64"), "y": Feature("int64")})
    assert block(schema, [{"y": 1, "x": 2}])["x"].tolist() == [2]
    with refused(ConfigError, name="y", mentions=["Example 6"]):
        block(schema, [{"x": 1, "y": 1}, {"x": 1}], 5)
    with refused(ConfigError, name="z", mentions=["Example 5"]):
        block(schema, [{"x": 1, "y": 1, "z": 1}], 5)
    with refused(ConfigError, name="y, z", mentions=["Example 5"]):
        block(schema, [{"x": 1, "z": 1}], 5)
    with refused(ConfigTypeError, name="examples", received=3, mentions=["Example 1"]):
        block(schema, [{"x": 1, "y": 1}, 3])


def test_elements_without_names() -> None:
    assert named((1, 2)) == {"input": 1, "label": 2}
    assert named((1, 2, 3)) == {"input": 1, "label": 2, "weight": 3}
    assert named(7) == {"input": 7}
    with refused(ConfigError, name="examples", received=4):
        named((1, 2, 3, 4))
    with refused(ConfigError, name="label", received=None):
        named(({"label": 1}, 2))


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300)), min_size=40, max_size=400))
@settings(max_examples=30, deadline=None)
def test_long_lists_of_integers_are_parsed_as_short_ones(values: list[int]) -> None:
    feature = Feature("int64", (None,))
    for part in (values, values[:3]):
        entry = example.entry("x", feature, example.content_of(feature, np.array(part)))
        assert example.parse(example.joined([entry]))["x"] == ("int64", part)


@pytest.mark.parametrize("end", [b"\x80", b"\xff" * 11, b"\xff" * 11 + b"\x01"])
def test_a_long_list_with_a_number_without_an_end_is_no_example(end: bytes) -> None:
    numbers = example.varints(np.arange(300)) + end
    int64_list = example.delimited(3, example.delimited(1, numbers))
    entry = example.delimited(1, example.delimited(1, b"x") + example.delimited(2, int64_list))
    with pytest.raises(ValueError, match="without an end"):
        example.parse(example.joined([entry]))
