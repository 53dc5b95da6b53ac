"""Writers of other libraries' formats, by their documented layouts; a test compares them with the libraries' own."""

import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

COUNT = 23


def rows() -> list[dict[str, Any]]:
    """Examples with a number, a text, an array, and a list of any length."""
    return [
        {
            "id": i,
            "text": "größe" * (i % 3),
            "matrix": np.full((2, 3), i, "float32"),
            "list": np.arange(i % 5 + 1, dtype="int64"),
        }
        for i in range(COUNT)
    ]


def npy(array: np.ndarray) -> bytes:
    found = io.BytesIO()
    np.save(found, array)
    return found.getvalue()


def tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))


def tar_members(row: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    key = f"some.dir/{row['id']:04d}"
    return [
        (f"{key}.id", f"{row['id']}\n".encode()),
        (f"{key}.txt", row["text"].encode()),
        (f"{key}.m.npy", npy(row["matrix"])),
        (f"{key}.l.npy", npy(row["list"])),
    ]


MDS = {"id": "int", "list": "ndarray:int64", "matrix": "ndarray:float32:2,3", "text": "str"}


def in_mds(kind: str, value: Any) -> bytes:
    """Return a value as MosaicML writes it; an array whose encoding has no shape begins with rank and length."""
    if kind == "int":
        return np.int64(value).tobytes()
    if kind == "str":
        return str(value).encode()
    head = b"" if kind.count(":") == 2 else bytes([1 << 2, len(value)])
    return head + bytes(value.tobytes())


def mds(folder: Path, shards: Sequence[Sequence[Mapping[str, Any]]], encodings: Mapping[str, str] = MDS) -> None:
    folder.mkdir()
    listed = []
    first = shards[0][0]
    fixed = {name for name, kind in encodings.items() if kind == "int" or kind.count(":") == 2}
    widths = {name: len(in_mds(kind, first[name])) if name in fixed else None for name, kind in encodings.items()}
    for number, samples in enumerate(shards):
        bodies = []
        for row in samples:
            parts = {name: in_mds(kind, row[name]) for name, kind in encodings.items()}
            heads = [struct.pack("<I", len(parts[name])) for name, size in widths.items() if size is None]
            bodies.append(b"".join(heads) + b"".join(parts.values()))
        about = {
            "column_encodings": list(encodings.values()),
            "column_names": list(encodings),
            "column_sizes": list(widths.values()),
            "compression": None,
            "format": "mds",
            "raw_data": {"basename": f"shard.{number:05d}.mds", "bytes": 0, "hashes": {}},
            "samples": len(samples),
            "version": 2,
            "zip_data": None,
        }
        config = json.dumps(about).encode()
        begin = 4 + 4 * (len(bodies) + 1) + len(config)
        offsets = begin + np.cumsum([0, *map(len, bodies)])
        content = struct.pack("<I", len(bodies)) + offsets.astype("<u4").tobytes() + config + b"".join(bodies)
        (folder / f"shard.{number:05d}.mds").write_bytes(content)
        listed.append(about)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))


def litdata(folder: Path, chunks: Sequence[Sequence[Mapping[str, Any]]], **config: Any) -> None:
    folder.mkdir()
    listed = []
    for number, items in enumerate(chunks):
        bodies = []
        for row in items:
            matrix = struct.pack("<4I", 9, 2, *row["matrix"].shape) + row["matrix"].tobytes()
            parts = [struct.pack("<q", row["id"]), row["text"].encode(), matrix, row["list"].tobytes()]
            bodies.append(struct.pack("<4I", *map(len, parts)) + b"".join(parts))
        offsets = 8 + 4 * len(bodies) + np.cumsum([0, *map(len, bodies)])
        content = struct.pack("<I", len(bodies)) + offsets.astype("<u4").tobytes() + b"".join(bodies)
        (folder / f"chunk-0-{number}.bin").write_bytes(content)
        about = {"chunk_bytes": len(content), "chunk_size": len(bodies), "filename": f"chunk-0-{number}.bin"}
        listed.append({**about, "dim": None})
    leaf = {"type": None, "context": None, "children_spec": []}
    names = json.dumps(["id", "text", "matrix", "list"])
    spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf] * 4}
    formats = ["int", "str", "numpy", "no_header_numpy:3"]
    known = {"data_format": formats, "data_spec": json.dumps([1, spec]), "item_loader": "PyTreeLoader"}
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": {**known, **config}}))


def array_records(path: Path, rows: Sequence[Mapping[str, Any]], options: str = "") -> None:
    """Write by the library's own writer and TensorFlow's message."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for row in rows:
        features = tf.train.Features(feature={name: _feature(np.asarray(value)) for name, value in row.items()})
        writer.write(tf.train.Example(features=features).SerializeToString())
    writer.close()


def sequences(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write by TensorFlow's own writer: numbers and texts are context, and arrays are feature lists."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            context = {name: _feature(np.asarray(row[name])) for name in ("id", "text")}
            lists = {
                name: tf.train.FeatureList(feature=[_feature(step) for step in row[name]])
                for name in ("matrix", "list")
            }
            example = tf.train.SequenceExample(
                context=tf.train.Features(feature=context), feature_lists=tf.train.FeatureLists(feature_list=lists)
            )
            writer.write(example.SerializeToString())


def _feature(value: np.ndarray) -> tf.train.Feature:
    if value.dtype.kind == "U":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.item().encode()]))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value.ravel()))


def megatron(base: Path, documents: Sequence[Sequence[np.ndarray]], code: int) -> None:
    flat = [sequence for document in documents for sequence in document]
    lengths = np.array([len(one) for one in flat], "<i4")
    pointers = ((np.cumsum(lengths) - lengths) * flat[0].itemsize).astype("<i8")
    bounds = np.cumsum([0, *map(len, documents)]).astype("<i8")
    base.with_suffix(".bin").write_bytes(b"".join(one.tobytes() for one in flat))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(flat), len(bounds))
    base.with_suffix(".idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + bounds.tobytes())


def arrow(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow

    folder.mkdir()
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        plain = [{**row, "matrix": row["matrix"].tolist(), "list": row["list"].tolist()} for row in part]
        matrix = pyarrow.list_(pyarrow.list_(pyarrow.float32(), 3), 2)
        kinds = {
            "id": pyarrow.int64(),
            "text": pyarrow.string(),
            "matrix": matrix,
            "list": pyarrow.list_(pyarrow.int64()),
        }
        table = pyarrow.Table.from_pylist(plain, pyarrow.schema(list(kinds.items())))
        path = str(folder / f"data-{number}.arrow")
        with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": f"data-{number}.arrow"} for number in range(2)]}
    (folder / "state.json").write_text(json.dumps(state))


def json_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps({**row, "matrix": row["matrix"].tolist(), "list": row["list"].tolist()}) for row in rows]
    path.write_text("\n".join(lines[:5]) + "\r\n\n" + "\n".join(lines[5:]))
