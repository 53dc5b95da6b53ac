"""Records of numbers parsed by NumPy and the ops: what they take for certain is what TensorFlow reads, to the bit."""

import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.integration.test_records import HUGE, Shard, framed, ops
from tfdist import data, native
from tfdist.data.examples.fetch import PAYLOAD, Fetcher, MappedBytes, source_of
from tfdist.data.format.example import content_of, delimited, entry, joined, varint, varints
from tfdist.data.format.record_forms import Forms
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.reading import tensor_columns
from tfdist.data.reading import tensor_columns as columns
from tfdist.errors import CorruptDataError
from tfdist.native import Records

__all__ = ["ops"]  # a fixture

pytestmark = pytest.mark.quick

#: what stands for a record that is left to TensorFlow
LEFT = None
Values = dict[str, np.ndarray[Any, Any]]


class Parser(Protocol):
    """Parses records, or leaves some."""

    def __call__(self, schema: Schema, payloads: Sequence[bytes]) -> list[Values | None]: ...


def by_forms(schema: Schema, payloads: Sequence[bytes]) -> list[Values | None]:
    """By NumPy; records of one length together."""
    forms = Forms(schema)
    found: list[Values | None] = [LEFT] * len(payloads)
    for length in sorted(set(map(len, payloads))):
        places = [place for place, payload in enumerate(payloads) if len(payload) == length]
        rows = np.array([np.frombuffer(payloads[place], np.uint8) for place in places]).reshape(len(places), length)
        columns, parsed = forms(rows)
        for row, place in enumerate(places):
            values = {name: column[row] for name, column in columns.items()}
            assert parsed[row] or not any(value.any() for value in values.values())
            found[place] = values if parsed[row] else LEFT
    return found


def by_ops(ops: Records, path: Path) -> Parser:
    def parse(schema: Schema, payloads: Sequence[bytes]) -> list[Values | None]:
        shard = Shard(path, list(payloads))
        values, ok = ops.parse_records([str(path)], **asked(shard), features=tensor_columns.stored(schema))
        columns = tensor_columns.from_stored(schema, values)
        assert all(ok[row] or not np.any(value[row]) for value in values for row in range(len(payloads)))
        return [
            {name: column[row].numpy() for name, column in columns.items()} if ok[row] else LEFT
            for row in range(len(payloads))
        ]

    return parse


def asked(shard: Shard) -> dict[str, Any]:
    count = len(shard.records)
    return {
        "file": np.zeros(count, np.int32),
        "offset": np.array(shard.offsets, np.int64),
        "length": np.array(shard.lengths, np.int64),
        "check": np.ones(count, bool),
    }


@pytest.fixture(params=["numpy", "native"], scope="module")
def parser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parser:
    if request.param == "numpy":
        return by_forms
    return by_ops(request.getfixturevalue("ops"), tmp_path_factory.mktemp("parsing") / "shard")


def by_tensorflow(schema: Schema, payload: bytes) -> Values | None:
    return _by_tensorflow(tuple(schema.items()), payload)


@functools.cache  # both parsers are given the same records
def _by_tensorflow(features: tuple[tuple[str, Feature], ...], payload: bytes) -> Values | None:
    schema = Schema(dict(features))
    try:
        return {name: value[0].numpy() for name, value in tensor_columns.parsed(schema, tf.constant([payload])).items()}
    except tf.errors.InvalidArgumentError:
        return None


def same(one: Values, other: Values) -> bool:
    """Bit by bit, as there may be any NaN."""
    return all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "float16", "float32", "float64"]
NUMBERS = st.builds(Feature, st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 2)]))
INTEGERS = st.builds(Feature, st.sampled_from(["int64", "bool", "int16"]), st.just((3,)), st.just("int64"))
SCHEMAS = st.dictionaries(
    st.text(min_size=1, max_size=3).filter(str.strip), NUMBERS | INTEGERS, min_size=1, max_size=4
).map(Schema)


def value_of(draw: st.DrawFn, feature: Feature) -> Any:
    """A value with bits of any kind: infinities, the smallest integer, numbers of few and of many bytes."""
    size = (feature.size or 0) * np.dtype(feature.dtype).itemsize
    bits = draw(st.binary(min_size=size, max_size=size) | st.just(bytes(size)) | st.just(b"\xff" * size))
    array = np.frombuffer(bits, "uint8" if feature.dtype == "bool" else feature.dtype).reshape(feature.shape)
    return array > 0 if feature.dtype == "bool" else array


@st.composite
def records(draw: st.DrawFn) -> tuple[Schema, list[bytes]]:
    """Records as tfdist writes them, or as TensorFlow does."""
    schema = draw(SCHEMAS)
    payloads = []
    for _ in range(draw(st.integers(0, 4))):
        values = {name: value_of(draw, feature) for name, feature in schema.items()}
        entries = [entry(name, schema[name], content_of(schema[name], value)) for name, value in values.items()]
        payload = joined(entries)
        if draw(st.booleans()):
            payload = tf.train.Example.FromString(payload).SerializeToString()
        payloads.append(payload)
    return schema, payloads


ANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@ANY
@given(found=records())
def test_what_is_plain_is_parsed_as_tensorflow_does(parser: Parser, found: tuple[Schema, list[bytes]]) -> None:
    schema, payloads = found
    assert tensor_columns.are_numbers(schema)
    parsed = parser(schema, payloads)
    assert len(parsed) == len(payloads)
    for payload, values in zip(payloads, parsed, strict=True):
        expected = by_tensorflow(schema, payload)
        assert values is not LEFT
        assert expected is not None
        assert same(values, expected)


def changed(draw: st.DrawFn, payload: bytes) -> bytes:
    """A record with some bytes changed, cut out, doubled or put in."""
    kind = draw(st.sampled_from(["flip", "cut", "double", "insert", "end"]))
    begin = draw(st.integers(0, max(len(payload) - 1, 0)))
    end = draw(st.integers(begin, len(payload)))
    if kind == "flip" and payload:
        return payload[:begin] + bytes([payload[begin] ^ 1 << draw(st.integers(0, 7))]) + payload[begin + 1 :]
    if kind == "cut":
        return payload[:begin] + payload[end:]
    if kind == "double":
        return payload[:end] + payload[begin:]
    if kind == "insert":
        return payload[:begin] + draw(st.binary(min_size=1, max_size=4)) + payload[begin:]
    return payload[:begin]


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Schema, list[bytes]]:
    schema, payloads = draw(records().filter(lambda found: bool(found[1])))
    mutated = [changed(draw, payload) for payload in payloads for _ in range(3)]
    return schema, [*payloads, *mutated]


@pytest.mark.thorough
@settings(ANY, max_examples=150)
@given(found=mutations())
@example(found=(Schema({"x": Feature("int64")}), [b"", b"\x0a", b"\x0a\x00", b"\x0a\x80\x00", b"\x0a\xff\xff\xff\xff"]))
def test_what_is_taken_for_certain_is_what_tensorflow_reads(parser: Parser, found: tuple[Schema, list[bytes]]) -> None:
    schema, payloads = found
    for payload, values in zip(payloads, parser(schema, payloads), strict=True):
        if values is not LEFT:
            expected = by_tensorflow(schema, payload)
            assert expected is not None, payload
            assert same(values, expected), payload


X, Y = Feature("float32", (2,)), Feature("int64")
PAIR = Schema({"x": X, "y": Y})
FLOATS = entry("x", X, content_of(X, [1.5, -2.0]))


def integer(value: bytes, *, name: str = "y") -> bytes:
    return delimited(1, delimited(1, name.encode()) + delimited(2, delimited(3, value)))


SEVEN = integer(b"\x0a\x01\x07")

#: records that TensorFlow reads, or may read, although nothing says so at first sight
STRANGE = {
    "unpacked": [FLOATS, integer(b"\x08\x07")],
    "packed in two parts": [FLOATS, integer(b"\x0a\x00\x0a\x01\x07")],
    "a feature twice": [FLOATS, SEVEN, integer(b"\x0a\x01\x09")],
    "a feature twice, and another not at all": [SEVEN, integer(b"\x0a\x01\x09")],
    "one feature more": [FLOATS, SEVEN, integer(b"\x0a\x01\x07", name="z")],
    "value before name": [FLOATS, delimited(1, delimited(2, delimited(3, b"\x0a\x01\x07")) + delimited(1, b"y"))],
    "a field that nobody knows": [FLOATS, SEVEN[:1] + bytes([SEVEN[1] + 2]) + SEVEN[2:] + b"\x18\x01"],
    "bits beyond the 64th": [FLOATS, integer(b"\x0a\x0a" + b"\xff" * 9 + b"\x7f")],
    "a varint of eleven bytes": [FLOATS, integer(b"\x0a\x0b" + b"\xff" * 10 + b"\x01")],
    "another kind": [FLOATS, entry("y", X, content_of(X, [1.5, -2.0]))],
    "two values": [FLOATS, integer(b"\x0a\x02\x07\x08")],
    "no value": [FLOATS, integer(b"")],
    "a missing feature": [FLOATS],
    "nothing": [],
    "a size of six bytes": [FLOATS, SEVEN[:1] + bytes([SEVEN[1] | 0x80, 0x80, 0x80, 0x80, 0x80, 0]) + SEVEN[2:]],
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_strange_is_left_to_tensorflow(parser: Parser, name: str) -> None:
    plain = joined([FLOATS, SEVEN])
    parsed = parser(PAIR, [plain, joined(STRANGE[name]), plain, joined(STRANGE[name]) + b"\x12\x00"])
    assert [values is LEFT for values in parsed] == [False, True, False, True]


def test_padded_numbers_and_any_order_of_features_are_plain(parser: Parser) -> None:
    padded = integer(b"\x0a\x0a" + b"\x87" + b"\x80" * 8 + b"\x00")
    negative = integer(b"\x0a\x0a" + varints([-(2**63)]))
    cases = {joined([FLOATS, padded]): 7, joined([SEVEN, FLOATS]): 7, joined([FLOATS, negative]): -(2**63)}
    parsed = parser(PAIR, list(cases))
    assert [values is not LEFT and int(values["y"]) for values in parsed] == list(cases.values())


def test_what_schemas_have_forms() -> None:
    assert not tensor_columns.are_numbers(Schema({"x": Feature("float32", (None,)), "y": Y}))
    assert not tensor_columns.are_numbers(Schema({"x": Feature("float32", (0,)), "y": Y}))
    assert not tensor_columns.are_numbers(Schema({"x": Feature("string"), "y": Y}))
    assert not tensor_columns.are_numbers(Schema({"x": Feature("float32", (2**30,))}))


def test_a_corrupt_record_has_no_values(ops: Records, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "a", [joined([FLOATS, SEVEN])] * 3)
    intact = shard.path.read_bytes()
    for place in range(shard.offsets[1], shard.offsets[2]):
        broken = bytearray(intact)
        broken[place] ^= 1 << place % 8
        shard.path.write_bytes(broken)
        (x, y), ok = ops.parse_records([str(shard.path)], **asked(shard), features=tensor_columns.stored(PAIR))
        assert ok.numpy().tolist() == [True, False, True]
        assert (x.numpy().tolist(), y.numpy().tolist()) == ([[1.5, -2], [0, 0], [1.5, -2]], [[7], [0], [7]])


@pytest.mark.parametrize("value", HUGE)
def test_absurd_places_are_records_that_are_not_ok(ops: Records, tmp_path: Path, value: int) -> None:
    shard = Shard(tmp_path / "a", [joined([FLOATS, SEVEN])] * 3)
    for name in ("offset", "length"):
        for check in (False, True):
            places = {**asked(shard), name: np.array([value] * 3, np.int64), "check": np.array([check] * 3)}
            _, ok = ops.parse_records([str(shard.path)], **places, features=tensor_columns.stored(PAIR))
            assert not ok.numpy().any()


def test_arguments_of_the_op(ops: Records, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "a", [joined([FLOATS, SEVEN])] * 3)
    wanted, path = tensor_columns.stored(PAIR), str(shard.path)
    values, ok = ops.parse_records([], **asked(Shard(tmp_path / "b", [])), features=wanted)
    assert ([value.shape.as_list() for value in values], ok.shape.as_list()) == ([[0, 2], [0, 1]], [0])
    for name, value in asked(shard).items():
        for wrong in (value[1:], value[None]):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"one per record|rank"):
                ops.parse_records([path], **{**asked(shard), name: wrong}, features=wanted)
    for count in (-1, -(2**63), 2**62, 2**63 - 1, 2**40):
        for twice in ([], [("z", "float", count)]):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"can have|larger than any file"):
                ops.parse_records([path], **asked(shard), features=[("x", "float", count), *twice])
    with pytest.raises(tf.errors.InvalidArgumentError, match="there are 1 files"):
        ops.parse_records([path], **{**asked(shard), "file": np.array([0, 1, 0], np.int32)}, features=wanted)


def foreign(folder: Path, payloads: Sequence[bytes], schema: Schema = PAIR) -> Path:
    """A directory of records that some other program wrote."""
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(b"".join(map(framed, payloads)))
    assert data.index(folder).layout == "generic"
    found = data.open(folder).schema
    assert {name: found[name].encoding for name in found} == {name: schema[name].encoding for name in schema}
    return folder


def plain(number: int) -> bytes:
    return joined([entry("x", X, content_of(X, [number, 0.5])), integer(delimited(1, varint(number)))])


def epoch(folder: Path, *, is_native: bool, **options: Any) -> list[tuple[list[float], int, float]]:
    reading = data.read(folder, global_batch_size=8, ops=None if is_native else False, label="y", **options)
    return [
        (row.tolist(), int(label), float(k))
        for x, y, w in reading
        for row, label, k in zip(x.numpy(), y, w, strict=True)
    ]


def trailed(number: int) -> bytes:
    """A record with a field behind it that nobody knows."""
    return plain(number) + delimited(9, bytes(number % 3))


def padded(number: int) -> bytes:
    """A record of one of 24 lengths: its integer and its sizes may take more bytes than they need."""
    groups = varint(number) + bytes(number % 9)
    value = bytes(byte | 0x80 for byte in groups[:-1]) + groups[-1:]
    more = number // 9 % 4

    def sized(tag: int, content: bytes) -> bytes:
        size = bytes([len(content)]) + bytes(more)
        return bytes([tag]) + bytes(byte | 0x80 for byte in size[:-1]) + size[-1:] + content

    floats = sized(0x0A, struct.pack("<ff", number, 0.5))
    return joined([sized(0x0A, sized(0x0A, b"x") + sized(0x12, sized(0x12, floats))), integer(delimited(1, value))])


READ: dict[str, Callable[[int], bytes]] = {
    "all alike": lambda number: plain(number % 100),
    "of two lengths": plain,
    "one that is strange": lambda number: joined(STRANGE["unpacked"]) if number == 80 else plain(number),
    "of many lengths": padded,
    "none plain": trailed,
}


@pytest.mark.thorough
@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("case", READ)
def test_an_epoch_of_records_of_another_program(tmp_path: Path, case: str, is_native: bool) -> None:
    assert native.records() is not None
    payloads = [READ[case](number) for number in range(300)]
    folder = foreign(tmp_path / "rows", payloads)
    values = tensor_columns.parsed(PAIR, tf.constant(payloads))
    expected = [(x, y, 1.0) for x, y in zip(values["x"].numpy().tolist(), values["y"].numpy().tolist(), strict=True)]
    for verify in ("first", "always", "never"):
        found = epoch(folder, is_native=is_native, verify=verify, tail="pad")
        assert sorted(row for row in found if row[2]) == sorted(expected)


@pytest.mark.parametrize("is_native", [False, True])
def test_a_corrupt_record_of_another_program_weighs_nothing(tmp_path: Path, is_native: bool) -> None:
    payloads = [plain(number) for number in range(200)]
    folder = foreign(tmp_path / "rows", payloads)
    path = folder / "a.tfrecord"
    broken = bytearray(path.read_bytes())
    broken[len(broken) // 2] ^= 4
    path.write_bytes(broken)
    for _ in range(2):
        found = epoch(folder, is_native=is_native, on_corrupt="skip")
        assert [row[2] for row in found].count(0.0) == 1
        assert len({row[1] for row in found if row[2]}) == 199
    with pytest.raises(CorruptDataError, match="is corrupt"):
        epoch(folder, is_native=is_native)


@pytest.mark.parametrize("is_native", [False, True])
def test_a_record_of_numbers_that_is_no_example_is_named_or_skipped(tmp_path: Path, is_native: bool) -> None:
    payloads = [plain(number % 100) for number in range(200)]
    folder = foreign(tmp_path / "rows", payloads)
    payloads[80] = b"\n\x7f".ljust(len(payloads[80]), b"x")
    (folder / "a.tfrecord").write_bytes(b"".join(map(framed, payloads)))
    with pytest.raises(CorruptDataError, match="example 80"):
        epoch(folder, is_native=is_native)
    found = epoch(folder, is_native=is_native, on_corrupt="skip")
    assert sorted(label for _, label, weight in found if weight) == sorted(n % 100 for n in range(200) if n != 80)


def test_who_is_asked_to_parse(tmp_path: Path, ops: Records) -> None:
    """The fast way must be taken where it can, and given up where it is none."""
    for case in READ:
        examples = data.open(foreign(tmp_path / case, [READ[case](number) for number in range(300)]))
        source = source_of(examples)
        assert isinstance(source, MappedBytes)
        fetcher = Fetcher(examples, source, verify="first", skip=False)
        asked = columns.WhenAsked(fetcher)
        assert columns.ByOps(fetcher, ops, source.paths, asked).parses == (case != "none plain")
        forms = fetcher.forms_of(examples.schema)
        assert (forms is None) == (case in ("of many lengths", "none plain"))
        by_numpy = columns.reader_of(fetcher, 8, asked, asked, uses_ops=False, caches=False)
        assert isinstance(by_numpy, columns.ByForms) == (forms is not None)
        if forms is not None:
            found, weight = fetcher.parsed(forms, np.arange(300))
            assert np.flatnonzero(~found[PAYLOAD]).tolist() == ([80] if case == "one that is strange" else [])
            assert weight.all()


@pytest.mark.thorough
@pytest.mark.parametrize("is_native", [False, True])
def test_arrays_of_any_length_that_are_kept_as_bytes(tmp_path: Path, is_native: bool) -> None:
    for dtype, kind in [*((dtype, "some") for dtype in ("float64", "uint32", "float16", "uint8")), ("uint32", "empty")]:
        values = [np.arange(n % 4 if kind == "some" else 0).astype(dtype) for n in range(20)]
        schema = Schema({"a": Feature(dtype, (None,), "raw"), "y": Y})
        folder = tmp_path / f"{dtype}-{kind}"
        data.write({"a": values, "y": np.arange(20)}, folder, schema=schema)
        for a, y in data.read(folder, global_batch_size=8, label="y", tail="keep", ops=None if is_native else False):
            assert a.dtype == dtype
            assert a.to_list() == [values[number].tolist() for number in y.numpy()]


def test_bytes_that_are_no_array_are_refused() -> None:
    for feature, size in ((Feature("float64", (None,), "raw"), 12), (Feature("float64", (2,), "raw"), 32)):
        schema = Schema({"a": feature})
        payload = joined([delimited(1, delimited(1, b"a") + delimited(2, delimited(1, delimited(1, bytes(size)))))])
        with pytest.raises(tf.errors.InvalidArgumentError):
            tensor_columns.parsed(schema, tf.constant([payload, payload]))


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("other", ["number", "text", "list"])
def test_a_feature_may_have_any_name(tmp_path: Path, other: str, is_native: bool) -> None:
    """Also one that columns of ours might have."""
    columns = {"number": np.arange(20) % 7, "text": [b"a"] * 20, "list": [[1] * (n % 3) for n in range(20)]}
    data.write({"payload": np.arange(20), "y": columns[other]}, tmp_path, schema=None)
    found = list(data.read(tmp_path, global_batch_size=8, tail="keep", ops=None if is_native else False))
    assert sorted(int(number) for x in found for number in x["payload"]) == list(range(20))
