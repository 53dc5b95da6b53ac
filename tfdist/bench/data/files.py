"""What a data benchmark reads: rows of a table and pictures, as tfdist writes them and as TensorFlow's own tools do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

COLUMNS = 40
FILES = 4
_SMALLEST, _LARGEST = 20_000, 100_000  # bytes of a picture
_NOISE = 1 << 22  # bytes, of which pictures are cut

Columns = dict[str, Any]


def rows(count: int) -> Columns:
    """Return rows of 40 numbers with a label: x float32 ``[count, 40]``, label int64 ``[count]``."""
    draw = np.random.default_rng(7)
    return {"x": draw.standard_normal((count, COLUMNS), np.float32), "label": draw.integers(0, 10, count)}


def pictures(count: int) -> Columns:
    """Return pictures of 20 to 100 KB with a label: bytes that cannot be compressed, as those of a JPEG."""
    draw = np.random.default_rng(7)
    noise = draw.bytes(_NOISE)
    sizes = draw.integers(_SMALLEST, _LARGEST, count, endpoint=True)
    begins = draw.integers(0, _NOISE - _LARGEST, count)
    images = [noise[begin : begin + size] for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]
    return {"image": images, "label": draw.integers(0, 10, count)}


def write_examples(columns: Columns, folder: Path) -> None:
    """Write columns as TensorFlow's guide does: a `tf.train.Example` for each, by `tf.io.TFRecordWriter`."""
    folder.mkdir(parents=True, exist_ok=True)
    count, features = len(columns["label"]), {name: _feature_of(values) for name, values in columns.items()}
    for file in range(FILES):
        with tf.io.TFRecordWriter(str(folder / f"part-{file}.tfrecord")) as writer:
            for place in range(count * file // FILES, count * (file + 1) // FILES):
                feature = {name: features[name](values[place]) for name, values in columns.items()}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def _feature_of(values: Any) -> Callable[[Any], tf.train.Feature]:
    if isinstance(values, list):
        return lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if values.dtype == np.float32:
        return lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def sequential(folder: Path, kind: str, batch_size: int) -> tf.data.Dataset:
    """Return the peer: files in their order, checksums checked, whole batches parsed on two threads, prefetched.

    Args:
        folder: what `write_examples` wrote.
        kind: "rows" or "images".
        batch_size: examples of a batch.
    """
    spec = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        **(
            {"x": tf.io.FixedLenFeature([COLUMNS], tf.float32)}
            if kind == "rows"
            else {"image": tf.io.FixedLenFeature([], tf.string)}
        ),
    }
    files = sorted(str(path) for path in folder.glob("part-*.tfrecord"))
    batches = tf.data.TFRecordDataset(files).batch(batch_size)
    return batches.map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=2).prefetch(2)


def consumer(dataset: tf.data.Dataset) -> Callable[[], int]:
    """Return what reads a dataset to its end, without Python between batches, and returns the number of batches."""

    def counted() -> tf.Tensor:
        return dataset.reduce(np.int64(0), lambda count, _: count + 1)

    read = tf.function(counted, autograph=False).get_concrete_function()
    return lambda: int(read())
