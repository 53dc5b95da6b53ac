"""Training that is killed and goes on is training that was never killed: bit for bit, wherever it was killed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forks import Forks, forks

SCRIPT = str(Path(__file__).parent / "cases" / "resumable.py")
CASES = str(Path(__file__).parent / "cases" / "backup_cases.py")
STEPS, VALIDATIONS = 3, 1  # ticks of an epoch: three batches, and one of the validation
TICKS = 2 * (STEPS + VALIDATIONS)
KILLED = -9

ENDED = 143

# without a scope a backup is whole before training goes on; in one it is written meanwhile, as it is by default
SCOPES = {
    "none": {},
    "mirrored": {"TFDIST_STRATEGY": "mirrored", "TFDIST_REPLICAS_PER_WORKER": "2", "ASYNCHRONOUS": "1"},
}
POINTS = ("tracing", "save-begin", "save-middle", "save-commit", "validation", "epoch-end")


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFDIST_") and name != "TF_CONFIG"}
    folder = tmp_path_factory.mktemp("forks")
    with forks(folder, {**kept, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}) as found:
        yield found


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


def kill(tick: int | None, at: str = "step") -> dict[str, Any]:
    return {"kind": "kill", "at": at, "step": tick}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scope", SCOPES)
def test_killed_at_any_step_and_resumed_equals_never_killed(forking: Forks, tmp_path: Path, scope: str) -> None:
    training = Training(forking, tmp_path, scope, "tfdist", "1")
    expected = training.to_the_end("never")
    assert len(expected["history"]["loss"]) == 2
    for tick in range(1, TICKS):
        assert training.run(f"at {tick}", kill(tick)) == KILLED, forking.output[-3000:]
        assert training.to_the_end(f"at {tick}") == expected, tick
    assert training.backups_left == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "data", ["arrays", "tf.data", "endless", "generator", "tfdist, mapped", "tfdist, shorter epochs"]
)
def test_any_input_is_entered_where_it_was_left(forking: Forks, tmp_path: Path, data: str) -> None:
    training = Training(forking, tmp_path, "none", data, "1")
    expected = training.to_the_end("never")
    for tick in (1, 2, 2):  # in an epoch; where that went on, in its validation; in the next epoch
        assert training.run("killed", kill(tick)) == KILLED, forking.output[-3000:]
    assert training.to_the_end("killed") == expected


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("save_freq", ["epoch", "3"])
def test_killed_twice_in_one_epoch_and_then_at_every_other_point(
    forking: Forks, tmp_path: Path, scope: str, save_freq: str
) -> None:
    training = Training(forking, tmp_path, scope, "tfdist", save_freq)
    expected = training.to_the_end("never")
    for fault in (kill(6), kill(1), *(kill(None, point) for point in POINTS)):
        assert training.run("faults", fault) == KILLED, (fault, forking.output[-3000:])
    # who is asked to end while a function is traced ends behind the step; only then there surely is a backup
    assert training.run("faults", {"kind": "term", "at": "tracing"}) == ENDED, forking.output[-3000:]
    assert training.run("faults", kill(None, "restore")) == KILLED, forking.output[-3000:]
    assert training.to_the_end("faults") == expected


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "case",
    [
        "arguments",
        "interrupted_in_a_notebook",
        "kept_and_gone_on_with",
        "another_model",
        "of_something_else",
        "damaged",
        "full_disk",
        "ended_by_sigterm",
        "early_stopping",
        "own_train_step",
        "mixed_precision",
        "distributed_optimizer",
        "accumulating_replicas",
        "another_batch",
        "several_steps_per_execution",
        "in_an_evaluation",
        "in_an_object_store",
        "what_other_callbacks_know",
        "halted_twice_in_one_validation",
    ],
)
def test_what_users_do_with_it(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(CASES, case, str(tmp_path)) == 0, forking.output[-3000:]
