"""`tfdist run` with workers that are killed, and whose number changes: the result is that of an undisturbed job."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.forks import OPTIMIZED, Forks
from tfdist.data import write

CASES = Path(__file__).parent / "cases"
DEADLINE_SECONDS = 800


def run(
    forking: Forks,
    folder: Path,
    *command: str,
    faults: list[dict[str, Any]] | None = None,
    hang_seconds: float = 60.0,  # a busy machine may hold a step up for longer than the usual 2 s
    **variables: str,
) -> list[Any]:
    """Run a job to its end; return its events."""
    events = folder / "events"
    events.unlink(missing_ok=True)
    variables = {"TFDIST_FAULTS": json.dumps(faults) if faults else "", **variables}
    options = ["--event-file", str(events), "--hang-seconds", str(hang_seconds)]
    with forking.start("tfdist", "run", *options, *command, cwd=folder, **variables) as process:
        _, errors = process.communicate(DEADLINE_SECONDS)
    assert process.returncode == 0, errors.decode(errors="replace")[-4000:]
    return [json.loads(line) for line in events.read_text().splitlines()]


def resumable(folder: Path, name: str) -> list[str]:
    return [str(CASES / "resumable.py"), str(folder / f"{name}.json"), str(folder / f"backup {name}"), "tfdist", "1"]


# One after the other, and between them all points: of the three steps of an epoch and one of its validation, one is
# saved before the first kill, so that each start after it restores. Worker 0 is the one that saves. Where the processes
# of a strategy have parts of a state, there are kills in the middle of a save. What a point is to one process, whatever
# the strategy, test_backup_and_restore.py tries; tests/soak/recover.py has more of each.
KILLS = {
    "multi-worker": [
        *({"worker": 0, "step": 1}, {"worker": 0, "at": "save-begin"}, {"worker": 1, "at": "restore"}),
        *({"worker": 1, "at": "tracing"}, {"worker": 1, "at": "validation"}, {"worker": 1, "at": "epoch-end"}),
    ],
    "ring": [
        *({"worker": 0, "at": "save-middle", "step": 2}, {"worker": 1, "at": "restore"}),
        {"worker": 0, "at": "save-commit"},
    ],
    "pipeline": [{"worker": 1, "at": "save-middle", "step": 2}, {"worker": 0, "at": "restore"}],
    "sharded-data-parallel": [{"worker": 1, "at": "save-middle", "step": 2}, {"worker": 0, "at": "restore"}],
}


@pytest.mark.readme("tfdist run --strategy ring -n 2 --max-restarts 3 train.py")
@pytest.mark.parametrize("strategy", KILLS)
def test_killed_at_steps_and_at_every_point_it_heals_and_equals_never_killed(
    strategy: str, forking: Forks, tmp_path: Path
) -> None:
    options = ["--strategy", strategy, "-n", "2", "--max-restarts", str(len(KILLS[strategy]))]
    options += ["--collectives", "native"] if strategy == "multi-worker" else []
    # of an accumulation and of what codecs leave out each worker has a part; every second step is in the middle of one
    more = {
        "ring": {"ACCUMULATE": "2", "COMPRESSION": "powersgd", OPTIMIZED: "1"},
        "multi-worker": {"COMPRESSION": "topk"},
        # which traces a step for each number of examples; a partial batch is in the others
        "pipeline": {"TFDIST_MICROBATCHES": "2", "EXAMPLES": "12", "VALIDATION": "4"},
        "sharded-data-parallel": {"ACCUMULATE": "2", "TFDIST_SHARDING_STAGE": "2"},
    }[strategy]
    run(forking, tmp_path, *options, *resumable(tmp_path, "never"), **more)
    kills = [{"kind": "kill", "restart": restart, **kill} for restart, kill in enumerate(KILLS[strategy])]
    # as where disks are not shared: who does not see the backup is handed it, and hands its part to the chief
    own = {"OWN_BACKUPS": "1"} if strategy == "ring" else {}
    events = run(forking, tmp_path, *options, *resumable(tmp_path, "killed"), faults=kills, **more, **own)
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "never.json").read_text()
    failures = [event for event in events if event["event"] == "failed"]
    assert [failure["worker"] for failure in failures] == [kill["worker"] for kill in KILLS[strategy]]


def test_one_process_with_two_replicas_heals_and_each_warning_is_once_in_the_summary(
    forking: Forks, tmp_path: Path
) -> None:
    options = ["--strategy", "mirrored", "--replicas-per-worker", "2", "--max-restarts", "3"]
    # steps enough to know how long one takes: 4, and 2 of validation; each replica has a momentum and a memory
    longer = {"EXAMPLES": "14", "VALIDATION": "6", "ODD": "1", "COMPRESSION": "dgc"}
    run(forking, tmp_path, *options, *resumable(tmp_path, "never"), **longer)
    faults = [
        {"kind": "kill", "worker": 0, "at": "step", "step": 3},
        {"kind": "hang", "worker": 0, "at": "step", "step": 4, "restart": 1},  # the first step of an epoch
    ]
    events = run(forking, tmp_path, *options, *resumable(tmp_path, "faults"), faults=faults, hang_seconds=5.0, **longer)
    assert (tmp_path / "faults.json").read_text() == (tmp_path / "never.json").read_text()
    assert [event["cause"] for event in events if event["event"] == "failed"] == ["signal", "hang"]
    of_statistics, of_count = [event["text"] for event in events if event["event"] == "warning"]
    assert "'batch_normalization" in of_statistics
    assert "round/count'" in of_count
    assert events[-1]["warnings"] == [of_statistics, of_count]


def test_a_job_with_parameter_servers_goes_on_where_its_chief_was_killed(forking: Forks, tmp_path: Path) -> None:
    options = ["--strategy", "parameter-server", "-n", "2", "--parameter-servers", "1", "--max-restarts", "2"]
    synchronous = {"TFDIST_MAX_STALENESS": "0", "ACCUMULATE": "2"}  # killed in the middle of an accumulation
    run(forking, tmp_path, *options, *resumable(tmp_path, "never"), **synchronous)
    kill = [{"kind": "kill", "worker": 0, "at": "step", "step": 6}]
    run(forking, tmp_path, *options, *resumable(tmp_path, "killed"), faults=kill, **synchronous)
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "never.json").read_text()


@pytest.mark.readme(
    "tfdist run --strategy ring -n 2 --max-restarts 3 --min-workers 1 --max-workers 3 train.py",
    "tfdist resize JOB 3",
)
# an accumulation goes on with other numbers of workers in test_sharded.py, too
@pytest.mark.parametrize("strategy", [pytest.param("multi-worker", marks=pytest.mark.release), "ring"])
def test_every_example_counts_once_per_epoch_while_one_worker_becomes_three_and_then_two(
    strategy: str, forking: Forks, tmp_path: Path
) -> None:
    batches = 3 if strategy == "multi-worker" else 1  # of an update: the number changes in the middle of one
    script, data, result = str(CASES / "counting.py"), str(tmp_path / "data"), tmp_path / "result.json"
    write({"x": np.arange(40), "seen": np.ones(40, "float32")}, data, processes=1)
    options = ["--strategy", strategy, "-n", "1", "--max-workers", "3"]
    options += ["--collectives", "tensorflow"] if strategy == "multi-worker" else []
    events = run(
        forking, tmp_path, *options, script, str(result), str(tmp_path / "backup"), data, ACCUMULATE=str(batches)
    )
    found = json.loads(result.read_text())
    assert found["counts"] == pytest.approx([6.0] * 40, abs=1e-4)
    assert found["steps"] == 30 // batches
    assert [event["workers"] for event in events if event["event"] == "stepping"] == [1, 3, 2]


def test_shares_are_measured_and_balanced_ones_outlive_a_kill(forking: Forks, tmp_path: Path) -> None:
    options = ["--strategy", "multi-worker", "-n", "2", "--max-restarts", "1", "--shares", "measured"]
    events = run(forking, tmp_path, *options, str(CASES / "balanced_job.py"), str(tmp_path))
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert found["measured 0"] == found["measured 1"] == [13, 3], "four rows of five, to within one example of 16"
    killed, resumed = ({step: told for step, *told in found[f"notes {start} 1"]} for start in (0, 1))
    assert max(killed) == 10
    assert killed[0] == [[1, 1], [None, None]], "they begin alike"
    (weights, (former, batch)) = killed[10]
    assert weights[0] > weights[1]
    assert former[0] > former[1], "a second change is decided on"
    assert batch == 8, "and holds four batches behind the fourth of the second epoch"
    first = min(resumed)
    assert first in (10, 11), "at most the step of the kill is repeated"
    assert resumed[first] == killed[10]
    end = found["end"]
    assert end["steps"] == 4 * 6
    assert end["shares"] == [13, 3]
    assert end["gap"] < 1e-5, "every example counts once in every epoch"
    warned = [one["text"] for one in events if one["event"] == "warning"]
    assert sum("13 rows, 3 rows" in text for text in warned) >= 2, "of the measured shares, and of the balanced ones"
