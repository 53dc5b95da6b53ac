"""The data of the formats benchmark, and those of its sides that need no other library."""

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.files.data_sides import consumer
from benchmarks.files.formats_race import BATCH, FormatsBench
from tfdist import data

Side = Callable[[], Any]
_SHARDS = 4
_SMALLEST, _LARGEST = 15_000, 25_000  # bytes of a picture
_NOISE = 1 << 22  # bytes, from which pictures and arrays are cut
_SHAPE = (80, 80, 3)
_COLUMNS = 40  # numbers of a row
_LONGEST = 350  # integers of a document
_ROW = 512  # integers of a packed row
_UNEQUAL = {"0": 0.55, "1": 0.25, "2": 0.15, "3": 0.05}


def prepare(setup: FormatsBench, folder: Path) -> None:
    """Write the data, unless they are there."""
    done, asked = folder / "data.json", [setup.images, setup.rows, setup.documents]
    if done.is_file() and json.loads(done.read_text(encoding="utf-8")) == asked:
        return
    done.unlink(missing_ok=True)
    draw = np.random.default_rng(7)
    noise = draw.bytes(_NOISE)
    pictures = list(_cut(noise, draw.integers(_SMALLEST, _LARGEST, setup.images), draw))
    size = int(np.prod(_SHAPE))
    arrays = [np.frombuffer(one, np.uint8) for one in _cut(noise, np.full(setup.images, size), draw)]
    _write_tars(folder / "tars", pictures)
    _write_mds(folder / "mds-pictures", "bytes", pictures)
    _write_mds(folder / "mds-arrays", "ndarray:uint8:" + ",".join(map(str, _SHAPE)), arrays)
    rows: dict[str, np.ndarray[Any, Any]] = {
        "x": draw.standard_normal((setup.rows, _COLUMNS), np.float32),
        "label": draw.integers(0, 10, setup.rows),
    }
    data.write(rows, folder / "one", num_shards=_SHARDS, processes=1, exists="overwrite")
    for number in range(_SHARDS):
        part = {name: np.array_split(values, _SHARDS)[number] for name, values in rows.items()}
        data.write(part, folder / f"part-{number}", num_shards=1, processes=1, exists="overwrite")
    documents = [draw.integers(0, 50_000, length) for length in draw.integers(1, _LONGEST, setup.documents)]
    data.write({"tokens": documents}, folder / "documents", num_shards=1, processes=1, exists="overwrite")
    done.write_text(json.dumps(asked), encoding="utf-8")


def sides(setup: FormatsBench, folder: Path) -> dict[tuple[str, str], Side]:
    """Return functions that read all examples once, by subject and way."""

    def reading(source: Any, subject: str, **known: Any) -> Side:
        return consumer(data.read(source, global_batch_size=BATCH[subject], **known))

    parts = {str(number): folder / f"part-{number}" for number in range(_SHARDS)}
    equal = data.mix(parts, weights=dict.fromkeys(parts, 1), stop="never", examples=setup.rows)
    unequal = data.mix(parts, weights=_UNEQUAL, stop="never", examples=setup.rows)
    rows = data.pack(folder / "documents", "tokens", _ROW)
    return {
        ("tar", "tfdist"): reading(str(folder / "tars" / "*.tar"), "tar"),
        ("MDS arrays", "tfdist"): reading(folder / "mds-arrays", "MDS arrays"),
        ("MDS pictures", "tfdist"): reading(folder / "mds-pictures", "MDS pictures"),
        ("mixing", "one source"): reading(folder / "one", "mixing"),
        ("mixing", "four, equal shares"): reading(equal, "mixing"),
        ("mixing", "four, unequal shares"): reading(unequal, "mixing"),
        ("packing", "tfdist"): reading(rows, "packing"),
        ("packing", "loop in tf.data"): consumer(_packed_by_loop(folder / "documents", setup.documents)),
    }


def _packed_by_loop(folder: Path, count: int) -> tf.data.Dataset:
    """Return rows as `tfdist.data.pack` makes them, by a loop over shuffled records."""
    spec = {"tokens": tf.io.RaggedFeature(tf.int64)}
    records = tf.data.TFRecordDataset(sorted(str(path) for path in folder.glob("*.tfrecord"))).shuffle(count)
    documents = records.batch(256).map(lambda batch: tf.io.parse_example(batch, spec)["tokens"]).prefetch(2)

    def rows() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        row = _empty()
        at = number = 0
        for document in documents.unbatch().as_numpy_iterator():
            number += 1
            taken = 0
            while taken < len(document):
                size = min(_ROW - at, len(document) - taken)
                here = slice(at, at + size)
                row["tokens"][here] = document[taken : taken + size]
                row["document"][here] = number
                row["position"][here] = np.arange(taken, taken + size)
                at, taken = at + size, taken + size
                if at == _ROW:
                    yield row
                    row, at, number = _empty(), 0, int(taken < len(document))
        if at:
            yield row

    kinds = {name: tf.TensorSpec((_ROW,), tf.as_dtype(values.dtype)) for name, values in _empty().items()}
    return tf.data.Dataset.from_generator(rows, output_signature=kinds).batch(BATCH["packing"]).prefetch(2)


def _empty() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "tokens": np.zeros(_ROW, np.int64),
        "document": np.zeros(_ROW, np.int32),
        "position": np.zeros(_ROW, np.int32),
    }


def _cut(noise: bytes, sizes: np.ndarray[Any, Any], draw: np.random.Generator) -> Iterator[bytes]:
    """Yield bytes that cannot be compressed, like those of a JPEG."""
    for size in sizes.tolist():
        begin = int(draw.integers(0, len(noise) - size))
        yield noise[begin : begin + size]


def _write_tars(folder: Path, pictures: Sequence[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for shard in range(_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as file:
            for number in range(len(pictures) * shard // _SHARDS, len(pictures) * (shard + 1) // _SHARDS):
                for name, content in (("jpg", pictures[number]), ("cls", str(number).encode())):
                    about = tarfile.TarInfo(f"{number:08d}.{name}")
                    about.size = len(content)
                    file.addfile(about, io.BytesIO(content))


def _write_mds(folder: Path, encoding: str, values: Sequence[Any]) -> None:
    """Write shards as MosaicML documents them: a number, and bytes or an array of one shape."""
    folder.mkdir(exist_ok=True)
    is_array, listed = encoding != "bytes", []
    sizes = [8, values[0].nbytes if is_array else None]
    for shard in range(_SHARDS):
        numbers = range(len(values) * shard // _SHARDS, len(values) * (shard + 1) // _SHARDS)
        bodies = []
        for number in numbers:
            content = values[number].tobytes() if is_array else values[number]
            head = b"" if is_array else struct.pack("<I", len(content))
            bodies.append(head + struct.pack("<q", number) + content)
        about = {
            "column_encodings": ["int", encoding],
            "column_names": ["id", "value"],
            "column_sizes": sizes,
            "compression": None,
            "format": "mds",
            "hashes": [],
            "samples": len(bodies),
            "size_limit": None,
            "version": 2,
            "zip_data": None,
        }
        config = json.dumps(about, sort_keys=True).encode()
        ends = 4 + 4 * (len(bodies) + 1) + len(config) + np.cumsum([0, *map(len, bodies)])
        content = struct.pack("<I", len(bodies)) + ends.astype("<u4").tobytes() + config + b"".join(bodies)
        name = f"shard.{shard:05d}.mds"
        (folder / name).write_bytes(content)
        listed.append({**about, "raw_data": {"basename": name, "bytes": len(content), "hashes": {}}})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}), encoding="utf-8")
