"""The promises of tfdist: names, commands, variables and formats match the golden texts, and old files are read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.goldens import file_formats, page_parts, texts
from tests.refusals import absent
from tfdist import data
from tfdist.checkpoint.checkpoint_manifest import File, Joint, read_receipt
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.order.batch_positions import Identity, Position
from tfdist.monitor.watch.event_log import read_events
from tfdist.monitor.watch.snapshot import sentence

# Written by earlier versions of tfdist, one for each version of a format. A sample is never written anew.
SAMPLES = texts.FOLDER / "samples"


@pytest.mark.parametrize("name", [name for name in texts.TEXTS if name != "messages.txt"])
def test_what_is_promised_is_kept(name: str) -> None:
    changed = texts.changes(name)
    assert not changed, (
        f"tests/goldens/{name} promises something else than the code does. Others rely on it: keep what is there, or, "
        f"if the change is meant, run `make goldens` and say so in CHANGELOG.md.\n{changed}"
    )


@pytest.mark.parametrize("page", page_parts.PAGES, ids=lambda page: page.name)
def test_parts_of_pages_are_what_they_repeat(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert page_parts.filled(text) == text, f"run `make goldens`: {page} repeats what has changed"


def test_every_part_has_its_place_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in page_parts.PAGES)
    assert [name for name in page_parts.PARTS if f"goldens: {name} -->" not in pages] == []


def test_what_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (texts.FOLDER / "file_formats.txt").read_text(encoding="utf-8")
    changed = kept.replace("  label: str\n", "  label: bytes\n")
    monkeypatch.setattr(texts, "TEXTS", {"file_formats.txt": lambda: changed})
    assert "-  label: str\n+  label: bytes\n" in texts.changes("file_formats.txt")


@pytest.mark.parametrize("version", [1, 2])
def test_data_of_every_version_is_read(version: int, tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLES / f"data-{version}", tmp_path / "data")
    found = data.open(folder)
    assert [(one["text"], int(one["label"])) for one in found] == [(b"%d" % n * (n % 4), n) for n in range(10)]
    assert data.verify(folder).is_sound
    written = (folder / "manifest.json").read_bytes()
    assert json.loads(written)["version"] == version
    assert Manifest.from_bytes(written).to_bytes() == written


def test_the_state_of_a_reader_is_read() -> None:
    state = json.loads((SAMPLES / "reader-1.json").read_text(encoding="utf-8"))
    identity = Identity(digest="94bde5883c53b3077f2b0e0061e90cc6", order="full", seed=17, examples=10)
    assert identity.position(state) == Position(1, 4)
    assert json.loads((SAMPLES / "data-2" / "manifest.json").read_text(encoding="utf-8"))["digest"] == identity.digest


@pytest.mark.parametrize("version", [1, 2])
def test_checkpoints_of_every_version_are_read(version: int, tmp_path: Path) -> None:
    found = Store(shutil.copytree(SAMPLES / f"checkpoint-{version}", tmp_path / "store")).newest()
    assert found is not None
    assert (found.step, found.state["epoch"], found.state["name"]) == (3, 1, "größe")
    assert str(found.state["losses"]) == "[0.5, nan]"
    np.testing.assert_array_equal(found.arrays["kernel"], np.arange(6, dtype="float32").reshape(2, 3))
    assert found.arrays["count"] == np.int64(4)
    parts = {index: {name: array.tolist() for name, array in one.items()} for index, one in found.parts.items()}
    assert parts == ({} if version == 1 else {index: {f"replica/{index}/sum": [index] * 2} for index in range(2)})


def test_the_receipt_of_a_part_is_read() -> None:
    written = (SAMPLES / "receipt-1.json").read_bytes()
    found = read_receipt(written, Joint(run="0123abcd", number=3, count=2), step=4, part=1)
    assert found == File(name="worker-00001.safetensors", bytes=9, crc32c=7, part=1)


def test_a_backup_is_read(tmp_path: Path) -> None:
    """`tests/integration/test_backup_cases.py` goes on from it."""
    found = Store(shutil.copytree(SAMPLES / "backup-1", tmp_path / "backup")).newest()
    assert found is not None
    assert (found.state["version"], found.state["epoch"], found.state["step"], found.state["steps"]) == (1, 1, 1, 4)
    assert {"random/keras", "variable/adam/iteration", "variable/sequential/dense/kernel"} <= found.arrays.keys()


def test_events_are_read_and_keep_their_keys() -> None:
    told = {event["event"]: sentence(event) for event in read_events(SAMPLES / "events-1.jsonl")}
    assert told["started"] == "2 started"
    assert not absent(told["stepping"], "all 2 ", "1.5 s", "2 steps repeated")
    assert not absent(told["verdict"], "straggler", "worker 1", "input")
    assert not absent(told["ended"], "code 1 ", "1 restarts")
    promised = (texts.FOLDER / "file_formats.txt").read_text(encoding="utf-8")
    now = {text.partition("\n")[0]: {line.strip() for line in text.splitlines()[1:]} for text in promised.split("\n\n")}
    for line in (SAMPLES / "events-1.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        kept = {key.partition(":")[0] for key in now[f"event: {event['event']}"]}
        assert {key.partition(":")[0] for key in file_formats.shape(event)} <= kept
