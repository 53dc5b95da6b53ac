"""The keys and types of what tfdist writes into files that outlive the process, as its writers write them now."""

import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens.event_lines import write_events
from tfdist import data
from tfdist.checkpoint.checkpoint_manifest import NAME, File, failure, receipt
from tfdist.checkpoint.checkpoint_store import Joint, Part, Store
from tfdist.data.format.data_manifest import NAME as DATA_NAME
from tfdist.data.order.batch_positions import Identity
from tfdist.monitor import status
from tfdist.monitor.recording import row_ring, rows


def file_formats() -> str:
    """Return the golden text: each kind of file, and below it its keys and their types."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            **_of_data(Path(folder)),
            **_of_checkpoints(Path(folder)),
            **_of_events(Path(folder)),
            **_of_memory(),
        }
    return "\n".join(f"{kind}\n" + "".join(f"  {line}\n" for line in lines) for kind, lines in kinds.items())


def shape(*values: Any) -> list[str]:
    """Return the keys of JSON values and the types that each of them has, a line for each.

    Example:
        >>> shape({"a": 1, "b": [{"c": None}, {"c": "x"}]}, {"a": 0.5})
        ['a: float | int', 'b[].c: null | str']
    """
    found: dict[str, set[str]] = {}
    for value in values:
        for path, kind in _leaves(value, ""):
            found.setdefault(path, set()).add(kind)
    return [f"{path}: {' | '.join(sorted(kinds))}" for path, kinds in sorted(found.items())]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        yield path, "null" if value is None else type(value).__name__


def arrays_in(file: Path) -> list[str]:
    """Return the arrays of a safetensors file, each with its dtype and how many axes it has."""
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    return [f"{name}: {one['dtype']}, axes: {len(one['shape'])}" for name, one in sorted(header.items())]


def _of_data(folder: Path) -> dict[str, list[str]]:
    texts = {"text": [b"a" * (place % 4) for place in range(10)], "label": np.arange(10)}
    made = data.write(texts, folder / "data", num_shards=2)
    state = Identity(digest=made.digest, order="full", seed=0, examples=10).state(epoch=1, consumed=4)
    index = made.shards[0].index
    assert index is not None
    return {
        "data: manifest": shape(json.loads((folder / "data" / DATA_NAME).read_bytes())),
        "data: index of a shard": arrays_in(folder / "data" / index.file),
        "data: state of a reader": shape(state),
    }


def _of_checkpoints(folder: Path) -> dict[str, list[str]]:
    arrays, joint = {"kernel": np.ones([2, 3], np.float32)}, Joint(run="0123abcd", number=3, count=2)
    store = Store(folder / "whole", durable=False)
    store.save(3, arrays, {"epoch": 1})
    parts = [Part(index=worker, arrays={f"replica/{worker}/sum": np.ones(2, np.int64)}) for worker in range(2)]
    Store(folder / "parts", durable=False).save(3, arrays, {"epoch": 1}, parts=parts)
    file = File(name="worker-00001.safetensors", bytes=9, crc32c=7, part=1)
    step = "step-000000000003"
    return {
        "checkpoint: files": sorted(path.name for path in (folder / "parts" / step).iterdir()),
        "checkpoint: manifest": shape(json.loads((folder / "whole" / step / NAME).read_bytes())),
        "checkpoint: manifest with parts": shape(json.loads((folder / "parts" / step / NAME).read_bytes())),
        "checkpoint: receipt of a part": shape(json.loads(receipt(joint, step=4, part=1, file=file))),
        "checkpoint: receipt of a part that failed": shape(json.loads(failure(joint, step=4, part=1, reason="full"))),
    }


def _of_events(folder: Path) -> dict[str, list[str]]:
    memory = folder / "memory"
    memory.mkdir()
    write_events(folder / "events", memory)
    lines = [json.loads(line) for line in (folder / "events").read_text(encoding="utf-8").splitlines()]
    kinds = sorted({line["event"] for line in lines})
    return {f"event: {kind}": shape(*(line for line in lines if line["event"] == kind)) for kind in kinds}


def _of_memory() -> dict[str, list[str]]:
    """The layouts of what processes of one job map: a reader of another version refuses it by its first word."""
    header = {"request": status.REQUEST, "target": status.TARGET, "ending": status.ENDING, "reserve": status.RESERVE}
    return {
        "status table: words of 8 bytes": [
            f"first word: {status._MAGIC:#x}",
            f"header: {status.HEADER}, record: {status.RECORD}, bytes of the source: {status.SOURCE_BYTES}",
            *(f"{name}: {word}" for name, word in {**header, "chief": status.CHIEF}.items()),
            *(f"{word.name.lower()}: {int(word)} of a record" for word in status.Word),
        ],
        "record of steps: words of 8 bytes": [
            f"first word: {row_ring._MAGIC:#x}",
            f"header: {row_ring._HEADER}, rows: {row_ring.ROWS}, row: {rows.WIDTH}",
            *(f"{column.name.lower()}: {int(column)} of a row" for column in rows.Column),
        ],
    }
