"""Records of tf.train.SequenceExample: their lists become features, or are refused; none is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdist
from tfdist.data.format import example, records
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError


def column(source: Any, name: str, start: int = 0) -> list[Any]:
    values = [value for block in source.blocks(start, None) for value in block[name]]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def sequence(context: dict[str, Any], lists: dict[str, list[list[Any]]]) -> bytes:
    """A record of tf.train.SequenceExample."""

    def feature(values: list[Any]) -> tuple[Feature, bytes]:
        kinds = {bytes: "string", float: "float32", int: "int64"}
        found = Feature(kinds[type(values[0])] if values else "int64", (None,))
        return found, example.content_of(found, values)

    payload = example.joined([example.entry(name, *feature(values)) for name, values in context.items()])
    entries = b""
    for name, steps in lists.items():
        fields = {"bytes": 1, "float": 2, "int64": 3}
        listed = b"".join(
            example.delimited(1, example.delimited(fields[found.encoding], content))
            for found, content in map(feature, steps)
        )
        entries += example.delimited(1, example.delimited(1, name.encode()) + example.delimited(2, listed))
    return records.frame(payload + example.delimited(2, entries))


def test_sequences_are_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        sequence({"id": [1]}, {"words": [[b"a"], [b"b\0"]], "x": [[1.5]], "none": []})
        + sequence({"id": [2]}, {"words": [], "x": [[2.5]], "none": [[7]]})
    )
    source = open_source(path)
    assert {name: (feature.dtype, feature.shape) for name, feature in source.schema.items()} == {
        "id": ("int64", ()),
        "none": ("int64", (None,)),
        "words": ("string", (None,)),
        "x": ("float32", (None,)),
    }
    assert column(source, "words") == [[b"a", b"b\0"], []]
    assert column(source, "x", 1) == [[2.5]]
    assert column(source, "none") == [[], [7]]
    with pytest.raises(ConfigError, match=r"tf\.train\.SequenceExample, whose feature list 'none' .*data write"):
        tfdist.data.index(tmp_path)
    asked = tfdist.data.index(tmp_path, schema=Schema({"id": Feature("int64")}))
    assert asked.examples == 2


@pytest.mark.parametrize(
    ("lists", "shape", "said"),
    [
        ({"x": [[1, 2], [3]]}, None, "'x' has steps of 1, 2 values, .*Where a step ends would be lost"),
        ({"x": [[1, 2], [3]]}, (None,), "Example 0 of .*'x' has steps of 1, 2 values"),
        ({"x": [[1, 2], [3, 4]]}, (4, 1), r"'x' has 2 steps of 2 values; the schema has the shape \(4, 1\)"),
        ({"x": [[1], [b"a"]]}, None, "'x' has steps of bytes and of int64"),
        ({"id": [[1]]}, None, "'id' is in the context of the sequence and one of its feature lists"),
    ],
)
def test_sequences_that_no_list_can_hold(lists: Any, shape: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(sequence({"id": [1]}, lists))
    schema = None if shape is None else {"id": Feature("int64"), "x": Feature("int64", shape)}
    with pytest.raises(ConfigError, match=said):
        list(open_source(tmp_path / "a.tfrecord", schema=schema).blocks(0, None))


def test_steps_of_as_many_values_are_an_array_where_all_records_have_as_many(tmp_path: Path) -> None:
    one, other, short = ({"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}, {"x": [[5, 6]]})
    path = tmp_path / "a.tfrecord"
    path.write_bytes(sequence({"id": [1]}, one) + sequence({"id": [2]}, other))
    source = open_source(path)
    assert source.schema["x"] == Feature("int64", (2, 2), "int64")
    assert column(source, "x") == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert tfdist.data.write(path, tmp_path / "to").examples == 2
    for lists in (short, {"x": []}, {}):
        path.write_bytes(sequence({"id": [1]}, one) + sequence({"id": [2]}, lists))
        with pytest.raises(ConfigError, match=r"'x' has steps of several values.*the shape \(None,\)"):
            open_source(path)
    path.write_bytes(sequence({"id": [1]}, one) * 256 + sequence({"id": [2]}, short))
    with pytest.raises(ConfigError, match=r"Example 256 of .*'x' has 1 steps of 2 values; the schema has .*\(2, 2\)"):
        list(open_source(path).blocks(0, None))


def test_steps_of_several_values_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(sequence({"id": [1]}, {"x": [[1, 2], [3, 4]]}))
    for shape, read in {(None,): [1, 2, 3, 4], (2, 2): [[1, 2], [3, 4]]}.items():
        feature = Feature("int64", shape, encoding="int64")
        source = open_source(tmp_path / "a.tfrecord", schema={"id": Feature("int64"), "x": feature})
        assert column(source, "x") == [read]
