"""Training that is killed and goes on is training that was never killed: bit for bit, wherever it was killed."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forks import Forks

SCRIPT = str(Path(__file__).parent / "cases" / "resumable.py")
STEPS, VALIDATIONS = 3, 1  # ticks of an epoch: three batches, and one of the validation
KILLED = -9

ENDED = 143

# without a scope a backup is whole before training goes on; in one it is written meanwhile, as it is by default. Steps
# are traced in one of them: it takes most of the time of a start, and changes nothing in what is saved and when.
SCOPES = {
    "none": {"EAGERLY": "1"},
    "mirrored": {"TFDIST_STRATEGY": "mirrored", "TFDIST_REPLICAS_PER_WORKER": "2", "ASYNCHRONOUS": "1"},
}


class Training:
    """One training, run until it comes to its end."""

    def __init__(self, forking: Forks, folder: Path, scope: str, data: str, save_freq: str) -> None:
        self._forking, self._folder, self._scope = forking, folder, SCOPES[scope]
        self._data, self._save_freq = data, save_freq

    def run(self, name: str, *faults: dict[str, Any]) -> int:
        backup = str(self._folder / f"backup of {name} ü")
        result = str(self._folder / f"{name}.json")
        plan = json.dumps([{"worker": 0, **fault} for fault in faults])
        return self._forking.run(
            SCRIPT, result, backup, self._data, self._save_freq, **self._scope, TFDIST_FAULTS=plan if faults else ""
        )

    def to_the_end(self, name: str) -> dict[str, Any]:
        assert self.run(name) == 0, self._forking.output[-3000:]
        return json.loads((self._folder / f"{name}.json").read_text())

    @property
    def backups_left(self) -> list[str]:
        return [path.name for path in self._folder.glob("backup*")]


@pytest.fixture(scope="module")
def never(forking: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that trains without kills in a scope; the result does not depend on how often it saves."""

    @functools.cache
    def trained(scope: str) -> dict[str, Any]:
        return Training(forking, tmp_path_factory.mktemp(scope), scope, "tfdist", "1").to_the_end("never")

    return trained


def kill(tick: int | None, at: str = "step") -> dict[str, Any]:
    return {"kind": "kill", "at": at, "step": tick}


# Without a scope a backup is whole before training goes on: each start with a `kill(1)` does one tick, together all.
# Who is asked to end while a function is traced ends behind the step; only then there surely is a backup to restore.
TERM, RESTORE = {"kind": "term", "at": "tracing"}, kill(None, "restore")
EVERYWHERE = [
    *(kill(1), kill(None, "save-begin"), kill(1), kill(None, "save-middle"), kill(1), kill(None, "save-commit")),
    *(kill(1), kill(None, "tracing"), kill(1), kill(1), RESTORE, kill(None, "validation"), kill(None, "epoch-end")),
]
SAVES = ("save-begin", "save-middle", "save-commit")
WHILE_SAVING = [kill(6), kill(1), *(kill(None, point) for point in SAVES), TERM, RESTORE]
IN_EPOCHS = [kill(6), kill(1), kill(None, "save-middle"), kill(None, "validation"), kill(None, "epoch-end"), TERM]


@pytest.mark.parametrize(
    ("scope", "save_freq", "faults"),
    [("none", "1", EVERYWHERE), ("mirrored", "3", WHILE_SAVING), ("none", "epoch", IN_EPOCHS)],
    ids=["at every step and point", "while a backup is written", "with a backup per epoch"],
)
def test_killed_again_and_again_it_equals_never_killed(
    forking: Forks,
    tmp_path: Path,
    never: Callable[[str], dict[str, Any]],
    scope: str,
    save_freq: str,
    faults: list[dict[str, Any]],
) -> None:
    training = Training(forking, tmp_path, scope, "tfdist", save_freq)
    expected = never(scope)
    assert len(expected["history"]["loss"]) == 2
    for number, fault in enumerate(faults):
        code = ENDED if fault["kind"] == "term" else KILLED
        assert training.run("faults", fault) == code, (number, fault, forking.output[-3000:])
    assert training.to_the_end("faults") == expected
    assert training.backups_left == []


def test_killed_while_a_backup_is_written_it_goes_on_from_one_that_is_whole(
    forking: Forks, tmp_path: Path, never: Callable[[str], dict[str, Any]]
) -> None:
    training = Training(forking, tmp_path, "mirrored", "tfdist", "1")
    assert training.run("killed", kill(STEPS + VALIDATIONS + 2)) == KILLED, forking.output[-3000:]  # in the next epoch
    assert training.to_the_end("killed") == never("mirrored")
    assert training.backups_left == []


@pytest.mark.parametrize(
    "data", ["arrays", "tf.data", "endless", "generator", "tfdist, mapped", "tfdist, shorter epochs"]
)
def test_any_input_is_entered_where_it_was_left(forking: Forks, tmp_path: Path, data: str) -> None:
    training = Training(forking, tmp_path, "none", data, "1")
    expected = training.to_the_end("never")
    for tick in (1, 3 if "shorter" in data else 4):  # in an epoch; where that went on, in the next one
        assert training.run("killed", kill(tick)) == KILLED, forking.output[-3000:]
    assert training.to_the_end("killed") == expected
