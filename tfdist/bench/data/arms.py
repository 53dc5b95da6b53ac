"""The sides of a data benchmark: each writes or reads all examples once when it is called."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import native
from tfdist.bench.data import files
from tfdist.bench.data.rows import BATCH, Setup
from tfdist.data.reading.reader import read
from tfdist.data.writing.indexing import index
from tfdist.data.writing.writer import write

Arm = Callable[[], Any]


def prepare(setup: Setup, folder: Path) -> None:
    """Write what is read: rows and pictures, as tfdist writes them and as TensorFlow's own tools do."""
    for kind, columns in (("rows", files.rows(setup.rows)), ("images", files.pictures(setup.images))):
        if not (folder / kind / "manifest.json").is_file():
            files.write_examples(columns, folder / f"{kind}-examples")
            write(columns, folder / kind, num_shards=files.FILES, processes=1, exists="overwrite")
    if not (folder / "rows-examples" / "manifest.json").is_file():
        index(folder / "rows-examples")  # these rows are as any other program writes them: layout generic


def writing(setup: Setup, folder: Path) -> dict[tuple[str, str], Arm]:
    """Return what writes, by the kind of data and the way."""
    place = folder / "written"

    def examples(columns: files.Columns) -> Arm:
        return lambda: files.write_examples(columns, place / "examples")

    def tfdist(columns: files.Columns) -> Arm:
        return lambda: write(columns, place / "tfdist", num_shards=files.FILES, processes=1, exists="overwrite")

    shutil.rmtree(place, ignore_errors=True)
    few = {"rows": files.rows(setup.written_rows), "images": files.pictures(setup.written_images)}
    return {
        (kind, way): make(columns)
        for kind, columns in few.items()
        for way, make in (("tf.train.Example", examples), ("tfdist", tfdist))
    }


def reading(folder: Path) -> tuple[dict[tuple[str, str], Arm], dict[str, str]]:
    """Return what reads, by the kind of data and the way; and what is left out, with the reason."""
    arms: dict[tuple[str, str], Arm] = {}
    left_out: dict[str, str] = {}
    engines: dict[str, bool | None] = {"numpy": False, "native": None}
    if native.records() is None:
        del engines["native"]
        left_out["native"] = "tfdist's ops cannot be had here; `tfdist build ops` says why"
    for kind, layouts in (("rows", ("generic", "fixed")), ("images", ("extent",))):
        peer = files.sequential(folder / f"{kind}-examples", kind, BATCH[kind])
        arms[kind, "tf.data"] = files.consumer(peer)
        for layout in layouts:
            for verify in ("always", "first"):
                for engine, ops in engines.items():
                    if verify == "first" and engine == "native":
                        continue  # the ops check every record every time
                    where = folder / (f"{kind}-examples" if layout == "generic" else kind)
                    dataset = read(where, global_batch_size=BATCH[kind], ops=ops, verify=verify)
                    name = f"{layout}, {engine}" + (", later epochs" if verify == "first" else "")
                    arms[kind, name] = files.consumer(dataset)
    if importlib.util.find_spec("grain") and importlib.util.find_spec("array_record"):
        from tfdist.bench.data import grain

        arms["images", "grain"] = grain.shuffled(folder / "images-grain", folder / "images", BATCH["images"])
    else:
        left_out["grain"] = "grain and array_record are not installed"
    return arms, left_out


def resuming(setup: Setup, folder: Path) -> tuple[dict[tuple[str, str], Arm], dict[str, int]]:
    """Return what reads one batch, at the start and in the middle; and how many bytes say where reading stands."""
    where, batch = folder / "rows", BATCH["rows"]
    begun = read(where, global_batch_size=batch)
    state = begun.state(begun.steps // 2)
    peer = files.sequential(folder / "rows-examples", "rows", batch)

    def first(dataset: tf.data.Dataset) -> None:
        next(iter(dataset))

    arms: dict[tuple[str, str], Arm] = {
        ("resume", "fresh start"): lambda: first(read(where, global_batch_size=batch)),
        ("resume", "in the middle"): lambda: first(read(where, global_batch_size=batch, state=state)),
        ("resume", "tf.data, fresh start"): lambda: first(peer),
        ("resume", "tf.data, skip"): lambda: first(peer.skip(begun.steps // 2)),
    }
    return arms, {"tfdist": len(json.dumps(state)), "tf.data": _checkpoint_bytes(setup, folder)}


def _checkpoint_bytes(setup: Setup, folder: Path) -> int:
    """Return the bytes of a checkpoint of tf.data's iterator, with a tenth of the pictures in its shuffle buffer."""
    files = tf.data.TFRecordDataset(sorted(str(path) for path in (folder / "images-examples").glob("part-*.tfrecord")))
    iterator = iter(files.shuffle(max(1, setup.images // 10)).batch(BATCH["images"]))
    next(iterator)
    place = folder / "checkpoint"
    tf.train.Checkpoint(iterator=iterator).write(str(place / "state"))
    found = sum(path.stat().st_size for path in place.iterdir())
    shutil.rmtree(place)
    return found
