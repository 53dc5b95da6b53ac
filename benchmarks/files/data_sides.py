"""The sides of the data benchmark, each of which writes or reads all examples once when it is called, and their data.

Rows of a table and pictures are read from files of tfdist and from files of TensorFlow's own tools. If grain and
array_record are installed, grain reads the same pictures, shuffled globally.
"""

import importlib
import importlib.util
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.files.data_race import BATCH, DataBench
from tfdist import native
from tfdist.data.format.record_framing import HEADER_BYTES
from tfdist.data.reading.index_source import index
from tfdist.data.reading.reader import read
from tfdist.data.reading.view import open_directory
from tfdist.data.writing.dataset_writer import write

Arm = Callable[[], Any]
_COLUMNS = 40
_FILES = 4
_SMALLEST, _LARGEST = 20_000, 100_000  # bytes of a picture
_NOISE = 1 << 22  # bytes, from which pictures are cut

_Columns = dict[str, Any]


def prepare(setup: DataBench, folder: Path) -> None:
    """Write the data to read, unless they are there: rows and pictures, by tfdist and by TensorFlow's own tools."""
    done, asked = folder / "data.json", [setup.rows, setup.images]
    if done.is_file() and json.loads(done.read_text(encoding="utf-8")) == asked:
        return
    done.unlink(missing_ok=True)
    for kind, columns in (("rows", _rows(setup.rows)), ("images", _pictures(setup.images))):
        _write_examples(columns, folder / f"{kind}-examples")
        write(columns, folder / kind, num_shards=_FILES, processes=1, exists="overwrite")
    index(folder / "rows-examples", exists="overwrite")  # as any other program writes them: layout generic
    (folder / "images-grain").unlink(missing_ok=True)
    done.write_text(json.dumps(asked), encoding="utf-8")


def writing(setup: DataBench, folder: Path) -> dict[tuple[str, str], Arm]:
    """Return the functions that write, by the kind of data and the way."""
    place = folder / "written"

    def examples(columns: _Columns) -> Arm:
        return lambda: _write_examples(columns, place / "examples")

    def tfdist(columns: _Columns) -> Arm:
        return lambda: write(columns, place / "tfdist", num_shards=_FILES, processes=1, exists="overwrite")

    shutil.rmtree(place, ignore_errors=True)
    few = {"rows": _rows(setup.written_rows), "images": _pictures(setup.written_images)}
    return {
        (kind, way): make(columns)
        for kind, columns in few.items()
        for way, make in (("tf.train.Example", examples), ("tfdist", tfdist))
    }


def reading(folder: Path) -> tuple[dict[tuple[str, str], Arm], dict[str, str]]:
    """Return the functions that read, by the kind of data and the way, and the reasons for missing ones."""
    arms: dict[tuple[str, str], Arm] = {}
    left_out: dict[str, str] = {}
    engines: dict[str, bool | None] = {"numpy": False, "native": None}
    if native.records() is None:
        del engines["native"]
        left_out["native"] = "tfdist's ops cannot be had here; `tfdist build ops` says why"
    for kind, layouts in (("rows", ("generic", "fixed")), ("images", ("extent",))):
        peer = _sequential(folder / f"{kind}-examples", kind, BATCH[kind])
        arms[kind, "tf.data"] = consumer(peer)
        for layout in layouts:
            for verify in ("always", "first"):
                for engine, ops in engines.items():
                    if verify == "first" and engine == "native":
                        continue  # the ops check every record every time
                    where = folder / (f"{kind}-examples" if layout == "generic" else kind)
                    dataset = read(where, global_batch_size=BATCH[kind], ops=ops, verify=verify)
                    name = f"{layout}, {engine}" + (", later epochs" if verify == "first" else "")
                    arms[kind, name] = consumer(dataset)
    if importlib.util.find_spec("grain") and importlib.util.find_spec("array_record"):
        arms["images", "grain"] = _by_grain(folder / "images-grain", folder / "images", BATCH["images"])
    else:
        left_out["grain"] = "grain and array_record are not installed"
    return arms, left_out


def resuming(setup: DataBench, folder: Path) -> tuple[dict[tuple[str, str], Arm], dict[str, int]]:
    """Return functions that read one batch, at the start and in the middle; and the bytes of a reader's state."""
    where, batch = folder / "rows", BATCH["rows"]
    begun = read(where, global_batch_size=batch)
    state = begun.state(begun.steps // 2)
    peer = _sequential(folder / "rows-examples", "rows", batch)

    def first(dataset: tf.data.Dataset) -> None:
        next(iter(dataset))

    arms: dict[tuple[str, str], Arm] = {
        ("resume", "fresh start"): lambda: first(read(where, global_batch_size=batch)),
        ("resume", "in the middle"): lambda: first(read(where, global_batch_size=batch, state=state)),
        ("resume", "tf.data, fresh start"): lambda: first(peer),
        ("resume", "tf.data, skip"): lambda: first(peer.skip(begun.steps // 2)),
    }
    return arms, {"tfdist": len(json.dumps(state)), "tf.data": _checkpoint_bytes(setup, folder)}


def _checkpoint_bytes(setup: DataBench, folder: Path) -> int:
    """Return the size of a checkpoint of tf.data's iterator, with a tenth of the pictures in its shuffle buffer."""
    files = tf.data.TFRecordDataset(sorted(str(path) for path in (folder / "images-examples").glob("part-*.tfrecord")))
    iterator = iter(files.shuffle(max(1, setup.images // 10)).batch(BATCH["images"]))
    next(iterator)
    place = folder / "checkpoint"
    tf.train.Checkpoint(iterator=iterator).write(str(place / "state"))
    found = sum(path.stat().st_size for path in place.iterdir())
    shutil.rmtree(place)
    return found


def _rows(count: int) -> _Columns:
    """Return rows of 40 numbers with a label: x float32 ``[count, 40]``, label int64 ``[count]``."""
    draw = np.random.default_rng(7)
    return {"x": draw.standard_normal((count, _COLUMNS), np.float32), "label": draw.integers(0, 10, count)}


def _pictures(count: int) -> _Columns:
    """Return pictures of 20 to 100 KB with a label: bytes that cannot be compressed, like those of a JPEG."""
    draw = np.random.default_rng(7)
    noise = draw.bytes(_NOISE)
    sizes = draw.integers(_SMALLEST, _LARGEST, count, endpoint=True)
    begins = draw.integers(0, _NOISE - _LARGEST, count)
    images = [noise[begin : begin + size] for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]
    return {"image": images, "label": draw.integers(0, 10, count)}


def _write_examples(columns: _Columns, folder: Path) -> None:
    """Write columns as in TensorFlow's guide: a `tf.train.Example` for each row, by `tf.io.TFRecordWriter`."""
    folder.mkdir(parents=True, exist_ok=True)
    count, features = len(columns["label"]), {name: _feature_of(values) for name, values in columns.items()}
    for file in range(_FILES):
        with tf.io.TFRecordWriter(str(folder / f"part-{file}.tfrecord")) as writer:
            for place in range(count * file // _FILES, count * (file + 1) // _FILES):
                feature = {name: features[name](values[place]) for name, values in columns.items()}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def _feature_of(values: Any) -> Callable[[Any], tf.train.Feature]:
    if isinstance(values, list):
        return lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if values.dtype == np.float32:
        return lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _sequential(folder: Path, kind: str, batch_size: int) -> tf.data.Dataset:
    """Return the peer: files in their order, checksums checked, whole batches parsed on two threads, prefetched."""
    spec = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        **(
            {"x": tf.io.FixedLenFeature([_COLUMNS], tf.float32)}
            if kind == "rows"
            else {"image": tf.io.FixedLenFeature([], tf.string)}
        ),
    }
    files = sorted(str(path) for path in folder.glob("part-*.tfrecord"))
    batches = tf.data.TFRecordDataset(files).batch(batch_size)
    return batches.map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=2).prefetch(2)


def consumer(dataset: tf.data.Dataset) -> Callable[[], int]:
    """Return a function that reads a dataset to its end, without Python between batches, and counts the batches."""

    def counted() -> tf.Tensor:
        return dataset.reduce(np.int64(0), lambda count, _: count + 1)

    read = tf.function(counted, autograph=False).get_concrete_function()
    return lambda: int(read())


def _by_grain(file: Path, source: Path, batch_size: int) -> Callable[[], int]:
    """Return a function that reads all pictures of an array_record file; a missing file is written first.

    Its groups have one record, as grain's guide advises; ``source`` is tfdist's directory with the same bytes.
    """
    grain: Any = importlib.import_module("grain")
    array_record: Any = importlib.import_module("array_record.python.array_record_module")

    if not file.exists():
        writer = array_record.ArrayRecordWriter(str(file), "group_size:1")
        examples = open_directory(source)
        for shard in range(len(examples.manifest.shards)):
            offsets = examples.index(shard).offsets.tolist()
            data = examples.storage.read(examples.manifest.shards[shard].file)
            for begin, end in itertools.pairwise(offsets):
                writer.write(data[begin + HEADER_BYTES : end - 4])
        writer.close()
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(records: Any) -> Any:
        return tf.io.parse_example(records, spec)

    records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(file))).shuffle(seed=7)
    batches = records.batch(batch_size, batch_fn=list).map(parsed)

    def read() -> int:
        return sum(1 for _ in batches.to_iter_dataset())

    return read
