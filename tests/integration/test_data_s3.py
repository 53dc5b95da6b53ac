"""Reading from a store: from a real S3 service the same batches as from a folder, and each block fetched once."""

import contextvars
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.s3_service import s3_service
from tfdist import data
from tfdist.cluster.ports import free_ports
from tfdist.errors import MissingFileError, StorageError, TfdistError
from tfdist.processes.pool import task_pool
from tfdist.storage.block_cache import BlockCache

pytestmark = pytest.mark.quick

COUNT = 1009
BUCKET = "examples"
ARRAYS = {"image": [bytes([place % 251]) * (500 + place) for place in range(COUNT)], "label": np.arange(COUNT)}
Counts = tuple[int, ...]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_service(BUCKET) as found:
        data.write(ARRAYS, f"s3://{BUCKET}/a b/train", num_shards=4, storage_options=found)
        yield found


def batches(where: Any, **options: Any) -> list[list[int]]:
    found = []
    for image, label, *_ in data.read(where, global_batch_size=100, seed=3, **options):
        assert image.numpy().tolist() == [ARRAYS["image"][place] for place in label.numpy()]
        found.append(label.numpy().tolist())
    return found


@pytest.mark.parametrize("order", ["full", "block"])
def test_a_store_and_a_folder_give_the_same_batches(order: str, options: dict[str, Any], tmp_path: Path) -> None:
    data.write(ARRAYS, tmp_path, num_shards=4)
    remote = batches(f"s3://{BUCKET}/a b/train", storage_options=options, order=order)
    assert remote == batches(tmp_path, order=order)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_each_block_is_fetched_once(where: str, options: dict[str, Any], tmp_path: Path) -> None:
    def cache() -> BlockCache:
        return BlockCache(limit_bytes=8 << 20, folder=tmp_path if where == "folder" else None, block_bytes=64 << 10)

    first = cache()
    place = {"storage_options": options, "remote_cache": first}
    reading = data.read(f"s3://{BUCKET}/a b/train", global_batch_size=100, order="block", **place)
    for _ in range(2):
        list(reading)
    shards = reading.examples.manifest.shards
    sizes = [size for shard in shards for size in (shard.bytes, shard.index.bytes if shard.index else 0)]
    blocks = 1 + sum(-(-size // (64 << 10)) for size in sizes)  # one is the manifest's
    assert first.counts().misses == blocks, "of two epochs, each block came once"
    if where == "folder":
        again = cache()
        batches(f"s3://{BUCKET}/a b/train", storage_options=options, remote_cache=again)
        assert again.counts().misses == 0, "another run finds them"


def test_a_state_of_a_folder_goes_on_in_a_store(options: dict[str, Any], tmp_path: Path) -> None:
    data.write(ARRAYS, tmp_path, num_shards=4)
    whole = batches(tmp_path)
    state = data.read(tmp_path, global_batch_size=100, seed=3).state(4)
    assert batches(f"s3://{BUCKET}/a b/train", storage_options=options, state=state) == whole[4:]


def test_what_is_not_there_is_told(options: dict[str, Any]) -> None:
    with pytest.raises(TfdistError, match="nothing"):
        data.read(f"s3://{BUCKET}/nothing", global_batch_size=1, storage_options=options)
    with pytest.raises((MissingFileError, TfdistError), match="no-such-bucket"):
        data.read("s3://no-such-bucket/a", global_batch_size=1, storage_options=options)


def as_elsewhere(function: Callable[..., Any], tasks: list[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """Call a function with nothing but its arguments, as another process does."""
    return (contextvars.Context().run(function, *pickle.loads(pickle.dumps(task))) for task in tasks)  # noqa: S301


@pytest.mark.parametrize("processes", [1, 2])
def test_a_source_may_lie_in_a_store(
    processes: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setattr(task_pool, "in_processes", as_elsewhere)
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(8))
    fsspec.filesystem("s3", **options).pipe_file(f"{BUCKET}/sources/a.npz", buffer.getvalue())
    how = {"num_shards": 2, "processes": processes, "source_options": options}
    data.write(f"s3://{BUCKET}/sources/a.npz", tmp_path / "written", **how)
    assert [example["x"] for example in data.open(tmp_path / "written")] == list(range(8))


def test_a_store_that_does_not_answer_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    nowhere = {**options, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{free_ports(1)[0]}"}}
    where = f"s3://{BUCKET}/sources/a.csv"
    with pytest.raises(StorageError, match=rf"{where} cannot be read: .*network.*source_options"):
        data.write(where, tmp_path / "written", source_options=nowhere)
    assert not (tmp_path / "written").exists()


def test_verify_finds_one_flipped_bit_in_a_store(options: dict[str, Any]) -> None:
    import fsspec

    url = f"s3://{BUCKET}/flipped"
    data.write(ARRAYS, url, num_shards=2, storage_options=options)
    driver = fsspec.filesystem("s3", **options)
    name = f"{BUCKET}/flipped/data-00001.tfrecord"
    content = bytearray(driver.cat_file(name))
    content[5000] ^= 1
    driver.pipe_file(name, bytes(content))
    report = data.verify(url, storage_options=options)
    assert not report.is_sound
    assert any("data-00001" in line for line in report.lines())
