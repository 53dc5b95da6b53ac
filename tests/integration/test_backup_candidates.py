"""The state from which workers on two hosts resume, where one host or both have lost their memory."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest

from tfdist.callbacks.backup import candidates
from tfdist.callbacks.backup.candidates import Found
from tfdist.checkpoint.checkpoint_manifest import Part
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.collectives.workers.worker_processes import Workers

SECONDS = 120.0
DISK, COPIES = "backup", "another host's memory"


class Meeting:
    """A meeting of workers in threads, in which each learns what all say."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = Barrier(count)
        self._said: dict[int, Any] = {}

    def said(self, index: int, value: Any) -> list[Any]:
        self._said[index] = value
        self._barrier.wait(SECONDS)
        said = [self._said[one] for one in range(self.count)]
        self._barrier.wait(SECONDS)
        return said


class Worker:
    """The part of `Workers` that decisions need."""

    def __init__(self, index: int, meeting: Meeting) -> None:
        self.index, self.count = index, meeting.count
        self.is_chief = index == 0
        self._meeting = meeting

    def gather(self, values: Any) -> Any:
        return np.array(self._meeting.said(self.index, list(values)))

    def from_worker(self, index: int, tensor: Any) -> Any:
        return self._meeting.said(self.index, tensor)[index]


def chosen(folder: Path) -> list[Found | None]:
    """Return the states from which two workers resume; each has a host's memory of its own, and both see the disk."""
    meeting = Meeting(2)

    def choose(index: int) -> Found | None:
        held = [("memory", store(folder, f"memory {index}")), (COPIES, store(folder, f"copies {index}"))]
        return candidates.newest(
            held,
            (DISK, store(folder, DISK)),
            cast(Workers, Worker(index, meeting)),
            needed=lambda manifest: [index],
            is_ours=lambda state: state["training"] == 1,
        )

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(choose, range(2)))


def store(folder: Path, name: str) -> Store:
    return Store(folder / name, durable=False)


def save(folder: Path, name: str, step: int, training: int = 1) -> None:
    parts = [Part(index=index, arrays={f"part {index}": np.full(2, step)}) for index in range(2)]
    store(folder, name).save(step, {"x": np.full(3, step)}, {"step": step, "training": training}, parts=parts)


def damage(folder: Path, name: str, step: int) -> None:
    file = folder / name / f"step-{step:012}" / "worker-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


# what is where, and from where all go on
CASES: dict[str, tuple[dict[str, int], int | None, str]] = {
    "the chief's host is lost": ({DISK: 3, "copies 1": 8}, 8, COPIES),
    "the chief's host is lost, and the backup is newer": ({DISK: 9, "copies 1": 8}, 9, DISK),
    "the other host is lost": ({DISK: 3, "memory 0": 8}, 8, "memory"),
    "both hosts are lost": ({DISK: 3}, 3, DISK),
    "both hosts are lost, and nothing was on disk": ({}, None, ""),
}


def expect(found: list[Found | None], step: int, source: str) -> None:
    for index, one in enumerate(found):
        assert one is not None
        assert (one.state["step"], one.source, one.arrays["x"].tolist()) == (step, source, [step] * 3)
        assert one.shards[f"part {index}"].tolist() == [step] * 2


@pytest.mark.parametrize("case", CASES)
def test_workers_go_on_from_the_same_state_the_newest_that_is_left(case: str, tmp_path: Path) -> None:
    saved, step, source = CASES[case]
    for name, number in saved.items():
        save(tmp_path, name, number)
    found = chosen(tmp_path)
    if step is None:
        assert found == [None, None]
    else:
        expect(found, step, source)


def test_a_copy_that_is_damaged_or_of_an_earlier_training_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, DISK, 3)
    save(tmp_path, "copies 1", 8, training=0)
    expect(chosen(tmp_path), 3, DISK)
    save(tmp_path, "copies 1", 9)
    damage(tmp_path, "copies 1", 9)  # in the part of the worker that has lost its own
    expect(chosen(tmp_path), 3, DISK)
