"""`tf.data.Dataset` as a source of examples: shapes that are known, that vary, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refused
from tfdist import data
from tfdist.data.format.schema import Feature
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError

pytestmark = pytest.mark.quick

Dataset = tf.data.Dataset
COUNT = 307


def column(source: Any, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
    found: list[Any] = []
    for block in source.blocks(start, stop):
        assert list(block) == list(source.schema)
        found += [value.tolist() if isinstance(value, np.ndarray) else value for value in block[name]]
    return found


def features(source: Any) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    return {name: (feature.dtype, feature.shape) for name, feature in source.schema.items()}


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 0), (0, 1), (5, 131), (127, 300), (300, 999), (307, None)])
def test_any_cut_of_known_shapes(start: int, stop: int | None) -> None:
    x = np.arange(COUNT * 6, dtype="float32").reshape(COUNT, 2, 3)
    texts = [f"ä{i}\0" for i in range(COUNT)]
    source = open_source(Dataset.from_tensor_slices({"x": x, "t": texts, "f": x[:, 0, 0] > 500}), label="f")
    assert features(source) == {"f": ("bool", ()), "t": ("string", ()), "x": ("float32", (2, 3))}
    assert source.count == COUNT
    assert not source.seekable
    assert column(source, "x", start, stop) == x[start:stop].tolist()
    assert column(source, "t", start, stop) == [text.encode() for text in texts[start:stop]]


def test_a_dataset_can_be_read_again_and_in_large_blocks() -> None:
    source = open_source(Dataset.range(5000))
    assert features(source) == {"input": ("int64", ())}
    assert [len(block["input"]) for block in source.blocks(0, None)] == [1024] * 4 + [904]
    assert column(source, "input") == column(source, "input") == list(range(5000))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda d: d.map(lambda i: (i, i + 1)), ["input", "label"]),
        (lambda d: d.map(lambda i: (i, i, tf.cast(i, tf.float32))), ["input", "label", "weight"]),
        (lambda d: d.map(lambda i: ({"a": i, "b": i}, i)), ["a", "b", "label"]),
        (lambda d: d.map(lambda i: {b"a".decode(): i}), ["a"]),
    ],
)
def test_names(make: Any, names: list[str]) -> None:
    source = open_source(make(Dataset.range(3)))
    assert list(source.schema) == names
    assert column(source, names[0]) == [0, 1, 2]


def test_lists_of_any_length_and_numbers_of_examples_that_nobody_knows() -> None:
    def make() -> Any:
        for i in range(COUNT):
            yield {"list": list(range(i % 5)), "texts": ["x"] * (i % 3), "one": i}

    signature = {
        "list": tf.TensorSpec((None,), tf.int32),
        "texts": tf.TensorSpec((None,), tf.string),
        "one": tf.TensorSpec((), tf.uint16),
    }
    source = open_source(Dataset.from_generator(make, output_signature=signature))
    assert features(source) == {"list": ("int32", (None,)), "one": ("uint16", ()), "texts": ("string", (None,))}
    assert source.count is None
    assert column(source, "list", 3, 200) == [list(range(i % 5)) for i in range(3, 200)]
    assert column(source, "texts") == [[b"x"] * (i % 3) for i in range(COUNT)]


def test_shapes_that_are_not_known_are_those_of_the_first() -> None:
    def make(last: int) -> Any:
        for i in range(5):
            yield np.full((2, 3 if i < 4 else last), i), i

    signature = (tf.TensorSpec((None, None), tf.float64), tf.TensorSpec((), tf.int64))
    source = open_source(Dataset.from_generator(lambda: make(3), output_signature=signature))
    assert features(source) == {"input": ("float64", (2, 3)), "label": ("int64", ())}
    assert column(source, "label", 1, 4) == [1, 2, 3]
    assert column(source, "input", 3)[1] == [[4.0] * 3] * 2
    source = open_source(Dataset.from_generator(lambda: make(7), output_signature=signature))
    with refused(ConfigError, name="input", mentions=("Example 4", "shape (2, 7)")):
        list(source.blocks(0, None))


def test_a_schema_of_other_dtypes_is_checked() -> None:
    dataset = Dataset.range(300).map(lambda i: {"x": i})
    assert column(open_source(dataset.take(256), schema={"x": Feature("uint8")}), "x") == list(range(256))
    with refused(ConfigError, name="x", mentions=("Example 256", "256 (int64)")):
        list(open_source(dataset, schema={"x": Feature("uint8")}).blocks(0, None))
    with refused(ConfigError, name="schema", received="'y'"):
        open_source(dataset, schema={"y": Feature("uint8")})


def test_a_dataset_with_other_elements_is_not_mixed_with_finished_shards(tmp_path: Path) -> None:
    def write(first: int, **options: Any) -> None:
        data.write(Dataset.range(first, first + COUNT).map(lambda i: {"x": i}), tmp_path, num_shards=3, **options)

    def stop(examples: int, *_: Any) -> None:
        if examples > COUNT // 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write(0, progress=stop)
    with refused(ConfigError, name="data-00000.tfrecord", path=str(tmp_path)):
        write(1)
    write(0)
    assert [example["x"] for example in data.open(tmp_path)] == list(range(COUNT))


def test_names_that_are_bytes() -> None:
    """The names of Parquet's columns are bytes in tensorflow-io."""
    source = open_source(Dataset.from_tensor_slices({b"x": [1, 2], "ä".encode(): [3.0, 4.0]}))
    assert features(source) == {"x": ("int32", ()), "ä": ("float32", ())}
    assert column(source, "ä") == [3.0, 4.0]


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: Dataset.range(3).repeat(), "dataset never ends"),
        (lambda: Dataset.range(0), "has no elements"),
        (lambda: Dataset.range(3).filter(lambda i: i > 5), "has no elements"),
        (lambda: Dataset.from_tensor_slices(tf.ragged.constant([[[1], [2, 3]], [[4]]])), "is a RaggedTensor"),
        (lambda: Dataset.from_tensors(tf.sparse.from_dense([1, 0])), "is a SparseTensor"),
        (lambda: Dataset.range(3).map(lambda i: {"a": {"b": i}}), "'a' of the dataset"),
        (lambda: Dataset.range(3).map(lambda i: tf.cast(i, tf.bfloat16)), "is bfloat16"),
        (lambda: Dataset.range(3).map(lambda i: (i, i, i, i)), "4 parts"),
    ],
)
def test_what_is_refused(make: Any, fact: str) -> None:
    with refused(ConfigError, mentions=(fact,)):
        list(open_source(make()).blocks(0, None))


def test_rows_of_a_ragged_tensor() -> None:
    source = open_source(Dataset.from_tensor_slices(tf.ragged.constant([[1], [], [2, 3]])))
    assert features(source) == {"input": ("int32", (None,))}
    assert column(source, "input") == [[1], [], [2, 3]]


def test_tensors_are_arrays() -> None:
    source = open_source({"x": tf.constant([[1, 2], [3, 4]]), "t": tf.constant(["a", "ä"])})
    assert features(source) == {"t": ("string", ()), "x": ("int32", (2,))}
    assert column(source, "t") == [b"a", "ä".encode()]
    stream = open_source(lambda: ({"x": tf.constant(i), "t": tf.constant("a\0")} for i in range(3)))
    assert column(stream, "x") == [0, 1, 2]
    assert column(stream, "t") == [b"a\0"] * 3
