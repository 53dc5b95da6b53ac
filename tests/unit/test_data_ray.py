"""A `ray.data.Dataset` as a source, with blocks of Arrow as Ray gives them; `tests/soak/ray.py` has Ray's own."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.refusals import refused
from tfdist import data
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError, ConfigTypeError


class Tensors(pa.ExtensionType):  # type: ignore[misc]
    """A type like Ray's `ArrowTensorTypeV2`: the shape is in the type, the storage a flat list."""

    def __init__(self, shape: tuple[int, ...], name: str = "ray.data.arrow_tensor_v2") -> None:
        self.shape, self.name = shape, name
        super().__init__(pa.large_list(pa.float32()), name)

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps([self.shape, self.name]).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> "Tensors":
        return cls(*json.loads(serialized))

    def __arrow_ext_class__(self) -> type:
        return TensorArray


class TensorArray(pa.ExtensionArray):  # type: ignore[misc]
    def to_numpy(self, zero_copy_only: bool = True) -> Any:
        return self.storage.flatten().to_numpy().reshape(len(self), *self.type.shape)


class Dataset:
    """A stand-in for Ray's dataset: its blocks, anew for each reading."""

    def __init__(self, *blocks: Any, preserve_order: bool = True, max_errored_blocks: int = 0) -> None:
        options = SimpleNamespace(preserve_order=preserve_order)
        self.context = SimpleNamespace(execution_options=options, max_errored_blocks=max_errored_blocks)
        self.readings = 0
        self.given = blocks

    def materialize(self) -> "MaterializedDataset":
        return MaterializedDataset(*self.given, preserve_order=False)

    def iter_batches(self, *, batch_size: int | None, batch_format: str) -> Iterator[Any]:
        assert (batch_size, batch_format) == (None, "pyarrow")
        self.readings += 1
        yield from self.given


class MaterializedDataset(Dataset):
    def count(self) -> int:
        return sum(block.num_rows for block in self.given)


class Part:
    iter_batches = Dataset.iter_batches


for kind in (Dataset, MaterializedDataset, Part):
    kind.__module__ = "ray.data.dataset"


def rows(first: int, last: int) -> Any:
    """A block with a number, a text and a tensor."""
    numbers = np.arange(first, last)
    values = [[float(number)] * 6 for number in numbers]
    tensors = pa.ExtensionArray.from_storage(Tensors((2, 3)), pa.array(values, pa.large_list(pa.float32())))
    return pa.table(
        {"id": numbers, "text": pa.array([f"ä{number}" for number in numbers], pa.string()), "image": tensors}
    )


BLOCKS = (rows(0, 0), rows(0, 5), rows(5, 6), rows(6, 20), rows(20, 20))


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 0), (4, 7), (5, 6), (19, 99), (20, None)])
def test_any_cut(start: int, stop: int | None) -> None:
    dataset = Dataset(*BLOCKS)
    source = open_source(dataset)
    assert {name: (one.dtype, one.shape) for name, one in source.schema.items()} == {
        "id": ("int64", ()),
        "image": ("float32", (2, 3)),
        "text": ("string", ()),
    }
    assert (source.count, source.seekable, source.identifies) == (None, False, False)
    for _ in range(2):
        found = [
            (int(one), image.tolist(), text)
            for block in source.blocks(start, stop)
            for one, image, text in zip(block["id"], block["image"], block["text"], strict=True)
        ]
        wanted = range(20)[start:stop]
        assert found == [(one, [[float(one)] * 3] * 2, f"ä{one}".encode()) for one in wanted]
    assert dataset.readings == 2  # none for the schema alone
    assert open_source(dataset.materialize()).count == 20


def test_a_directory_is_that_of_the_table_and_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = pa.concat_tables(BLOCKS)
    lists = pa.list_(pa.list_(pa.float32(), 3), 2)
    plain = whole.set_column(2, "image", pa.array([[[float(i)] * 3] * 2 for i in range(20)], lists))
    data.write(plain, tmp_path / "table", num_shards=3)

    def stop(examples: int, *_: Any) -> None:
        if examples > 10:
            raise InterruptedError

    dataset = Dataset(*BLOCKS).materialize()
    with pytest.raises(InterruptedError):
        data.write(dataset, tmp_path / "ray", num_shards=3, progress=stop)
    other = MaterializedDataset(rows(1, 21))
    with refused(ConfigError, name="data-00000.tfrecord", path=tmp_path / "ray"):
        data.write(other, tmp_path / "ray", num_shards=3)
    data.write(dataset, tmp_path / "ray", num_shards=3)
    for path in (tmp_path / "table").glob("data-*"):
        assert (tmp_path / "ray" / path.name).read_bytes() == path.read_bytes()


def test_what_cannot_be_promised_is_refused() -> None:
    named = Tensors((2,), "ray.data.arrow_variable_shaped_tensor")
    odd = pa.table({"x": pa.ExtensionArray.from_storage(named, pa.array([[1.0]], pa.large_list(pa.float32())))})
    for dataset, name, facts in (
        (Dataset(*BLOCKS, preserve_order=False), "preserve_order", ["preserve_order = True", "materialize()"]),
        (Dataset(*BLOCKS, max_errored_blocks=-1), "max_errored_blocks", ["-1"]),
        (Dataset(BLOCKS[0]), "examples", ["no rows"]),
        (Dataset(), "examples", ["no rows"]),
        (Dataset(odd), "x", ["several shapes"]),
        (Dataset(pa.table({"x": [1, None]})), "x", ["Example 1", "null"]),
        (Dataset(pa.table({"x": [1]}), pa.table({"y": [1]})), "x", ["Example 1", "no column"]),
        (Dataset(pa.table({"x": [1]}), pa.table({"x": [1], "y": [1]})), "y", ["Example 1"]),
    ):
        with refused(ConfigError, name=name, mentions=facts):
            list(open_source(dataset).blocks(0, None))
    with refused(ConfigTypeError, name="examples", received="Part"):
        open_source(Part())
    two = Dataset(pa.table({"x": [1]}), pa.table({"x": [1], "y": [1]}))
    assert sum(len(block["x"]) for block in open_source(two, schema={"x": data.Feature("int64")}).blocks(0, None)) == 2
