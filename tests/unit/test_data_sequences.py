"""Records of tf.train.SequenceExample: their lists become features, or are refused; none is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdist
from tests.refusals import refused
from tfdist.data.format import example, record_framing
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
    return record_framing.frame(payload + example.delimited(2, entries))


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
    with refused(ConfigError, name="none", path="a.tfrecord", mentions=["tf.train.SequenceExample", "data write"]):
        tfdist.data.index(tmp_path)
    asked = tfdist.data.index(tmp_path, schema=Schema({"id": Feature("int64")}))
    assert asked.examples == 2


@pytest.mark.parametrize(
    ("lists", "shape", "name", "received", "fact"),
    [
        ({"x": [[1, 2], [3]]}, None, "x", [1, 2], "record 0"),
        ({"x": [[1, 2], [3]]}, (None,), "x", [1, 2], "Example 0"),
        ({"x": [[1, 2], [3, 4]]}, (4, 1), "x", (2, 2), "(4, 1)"),
        ({"x": [[1], [b"a"]]}, None, "x", "bytes and int64", "record 0"),
        ({"id": [[1]]}, None, "id", None, "context"),
    ],
)
def test_sequences_that_no_list_can_hold(
    lists: Any, shape: Any, name: str, received: object, fact: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(sequence({"id": [1]}, lists))
    schema = None if shape is None else {"id": Feature("int64"), "x": Feature("int64", shape)}
    with refused(ConfigError, name=name, received=received, path=path, mentions=[fact]):
        list(open_source(path, schema=schema).blocks(0, None))


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
        with refused(ConfigError, name="x", mentions=["(None,)"]):
            open_source(path)
    path.write_bytes(sequence({"id": [1]}, one) * 256 + sequence({"id": [2]}, short))
    with refused(ConfigError, name="x", received=(1, 2), path=path, mentions=["Example 256", "(2, 2)"]):
        list(open_source(path).blocks(0, None))


def test_steps_of_several_values_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(sequence({"id": [1]}, {"x": [[1, 2], [3, 4]]}))
    for shape, read in {(None,): [1, 2, 3, 4], (2, 2): [[1, 2], [3, 4]]}.items():
        feature = Feature("int64", shape, encoding="int64")
        source = open_source(tmp_path / "a.tfrecord", schema={"id": Feature("int64"), "x": feature})
        assert column(source, "x") == [read]
