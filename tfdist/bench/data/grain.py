"""grain over array_record: the same pictures, shuffled globally, in batches. Where both are installed."""

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.data.format.records import HEADER_BYTES
from tfdist.data.reading.examples import open_directory


def shuffled(file: Path, source: Path, batch_size: int) -> Callable[[], int]:
    """Return what reads all pictures of an array_record file, which is written first where it is missing.

    Args:
        file: the array_record file, with groups of one record, which are what grain's guide advises.
        source: the directory that tfdist wrote; the records are the same bytes.
        batch_size: pictures of a batch.
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
