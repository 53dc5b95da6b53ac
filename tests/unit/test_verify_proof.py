"""Two runs of a script compared, the files that they leave, and what is asked for: pure functions, and values."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import absent
from tfdist.cli.verify import proof_table
from tfdist.errors import ConfigError
from tfdist.verify.proof import proving
from tfdist.verify.proof.differences import compared, other_batches
from tfdist.verify.proof.state_files import ONE_DEVICE, STRATEGY, Run, StateFiles, Step, storable


def step(number: int, **values: Any) -> Step:
    arrays = {name.replace("_", "/", 1): [np.asarray(one) for one in copies] for name, copies in values.items()}
    return Step(number=number, values=arrays)


def names(ours: list[Step], theirs: list[Step], run: Run | None = None) -> list[tuple[int, str, str]]:
    found, _ = compared([ours], theirs, run or Run(), tolerance=1e-4)
    return [(one.step, one.kind, one.name) for one in found]


def test_a_difference_is_relative_to_the_largest_number_of_the_value() -> None:
    reference = step(1, weight_a=[[1e-3, 0.0]])
    (found,), _ = compared([[step(1, weight_a=[[1.2e-3, 0.0]])]], [reference], Run(), tolerance=1e-4)
    assert found.size == pytest.approx(0.2)
    assert names([step(1, weight_a=[[1e-3, 5e-8]])], [reference]) == []


def test_what_is_rounding_beside_others_of_its_kind_is_held_to_their_size() -> None:
    reference = step(1, weight_a=[[1.0]], weight_b=[[1e-9]], slot_s_momentum=[[1e-9]])
    assert names([step(1, weight_a=[[1.0]], weight_b=[[-1e-9]], slot_s_momentum=[[1e-9]])], [reference]) == []
    other = step(1, weight_a=[[1.0]], weight_b=[[1e-9]], slot_s_momentum=[[-1e-9]])
    assert names([other], [reference]) == [(1, "slot", "s_momentum")]  # the only slot of its name


def test_a_weight_that_the_order_of_examples_changes_as_much_is_rounding() -> None:
    ours, reference = step(1, weight_a=[[1.0]], weight_b=[[4e-3]]), step(1, weight_a=[[1.0]], weight_b=[[1e-3]])
    assert names([ours], [reference]) == [(1, "weight", "b")]

    def left(b: float, ours: Step = ours) -> list[str]:
        turned = [step(1, weight_a=[[1.0]], weight_b=[[b]])]
        return [one.name for one in compared([[ours]], [reference], Run(), tolerance=1e-4, turned=turned)[0]]

    assert left(2e-3) == []
    assert left(1.1e-3) == ["b"]  # the order changes a thirtieth of that
    assert left(9.0, step(1, weight_a=[[1.0]], weight_b=[[2e-2]])) == ["b"]  # large beside the others


def test_integers_are_the_same_or_are_not() -> None:
    for number in (10**9, 2**60):
        assert names([step(1, state_n=[number + 1])], [step(1, state_n=[number])]) == [(1, "state", "n")]
        assert names([step(1, state_n=[number])], [step(1, state_n=[number])]) == []


def test_both_parts_of_complex_numbers_are_compared() -> None:
    assert names([step(1, weight_a=[1 + 1j])], [step(1, weight_a=[1 + 2j])]) == [(1, "weight", "a")]
    assert names([step(1, weight_a=[1 + 1j])], [step(1, weight_a=[1 + 1.00001j])]) == []


def test_nan_is_nan_and_no_number() -> None:
    assert names([step(1, weight_a=[[math.nan]])], [step(1, weight_a=[[math.nan]])]) == []
    assert names([step(1, weight_a=[[math.nan]])], [step(1, weight_a=[[1.0]])]) == [(1, "weight", "a")]


def test_each_replica_and_each_worker_is_compared() -> None:
    reference, right = [step(1, state_n=[2.0])], [step(1, state_n=[2.0])]
    (found,), _ = compared([right, [step(1, state_n=[2.0, 3.0])]], reference, Run(), tolerance=1e-4)
    assert not absent(found.where, "worker 1, replica 1, 3", "2 on one device")


def test_the_cause_comes_first() -> None:
    ours = [step(1, weight_a=[1.0], state_n=[1.0]), step(2, weight_a=[9.0], state_n=[5.0], log_loss=[7.0])]
    theirs = [step(1, weight_a=[1.0], state_n=[2.0]), step(2, weight_a=[1.0], state_n=[2.0], log_loss=[1.0])]
    assert names(ours, theirs) == [(1, "state", "n"), (2, "log", "loss"), (2, "weight", "a")]
    (first, *_), _ = compared([ours], theirs, Run(), tolerance=1e-4)
    assert (first.size, first.largest) == (0.5, 1.5)


def test_other_rows_of_a_batch_and_values_of_one_side_are_differences() -> None:
    run = Run(others=["", "rows"], details=["", "x['edges'] has 12 rows, 20 on one device"])
    assert names([], [], run) == [(2, "batch", "x['edges']")]
    assert names([step(1, weight_a=[1.0])], [step(1, weight_b=[1.0])]) == [(1, "weight", "a"), (1, "weight", "b")]
    assert names([step(0, slot_a=[1.0])], [step(0)]) == []  # which Keras makes in the first step


@pytest.mark.parametrize(
    ("workers", "reference", "other"),
    [
        ([[["4 9"]], [["4 9"]]], [["4 9"]], 0),  # each has the whole batch
        ([[["2 4"]], [["2 5"]]], [["4 9"]], 0),  # each has a part
        ([[["2 4"]], [["2 6"]]], [["4 9"]], 1),
        ([[["4 9"], ["4 1"]]], [["4 9"], ["4 2"]], 2),
        ([[[]]], [["4 9"]], None),
    ],
)
def test_batches_of_a_loop(workers: Any, reference: Any, other: int | None) -> None:
    assert other_batches(workers, reference) == other


def test_steps_that_one_device_did_not_make_are_not_called_the_same(tmp_path: Path) -> None:
    for kind, count in ((STRATEGY, 3), (ONE_DEVICE, 2)):
        files = StateFiles(tmp_path, kind, 0)
        for number in range(count + 1):
            files.write(step(number, weight_a=[[1.0 + number]]))
        files.end(Run(loop="loop", epochs=[0] * count, batches=[count], is_done=True, seen=[["1 7"]] * count))
    theirs = StateFiles(tmp_path, STRATEGY, 0).run()
    assert theirs is not None
    job = proving.Job(name="mirrored", run=(), script=("train.py",), variables={})
    found = proving._compared(job, str(tmp_path), theirs)
    assert (found.outcome, found.steps) == (proving.Outcome.SAME, 2)
    assert any("step 2" in one for one in found.left_out)


def test_values_that_are_rounding_are_told_together(tmp_path: Path) -> None:
    steps = [step(1, weight_a=[[1.0]], weight_b=[[small]], weight_c=[[small]]) for small in (1e-3, 2e-3)]
    for kind, made in zip((STRATEGY, ONE_DEVICE), steps, strict=True):
        files = StateFiles(tmp_path, kind, 0)
        files.write(made)
        files.end(Run(loop="loop", epochs=[0], batches=[1], is_done=True))
    theirs = StateFiles(tmp_path, STRATEGY, 0).run()
    assert theirs is not None
    job = proving.Job(name="mirrored", run=(), script=("train.py",), variables={})
    found = proving._compared(job, str(tmp_path), theirs, turned=steps[:1])
    assert found.outcome is proving.Outcome.SAME
    assert "b, c" in [one.partition(":")[0] for one in found.left_out]


def test_files_of_a_run_share_what_is_the_same(tmp_path: Path) -> None:
    values = {"weight/a": [np.ones(3), np.ones(3)], "state/b": [np.zeros(2), np.ones(2)], "log/c": [np.float32(1)]}
    for worker in (0, 1):
        files = StateFiles(tmp_path, STRATEGY, worker)
        files.write(Step(number=1, values=values))
        files.end(Run(replicas=2, epochs=[0], is_done=True))
    assert len(list((tmp_path / "arrays").iterdir())) == 4
    one, other = StateFiles.of_all(tmp_path, STRATEGY)
    (read,), run = other.steps(), one.run()
    assert [len(read.values[name]) for name in values] == [1, 2, 1]
    assert run is not None
    assert (run.replicas, run.epochs) == (2, [0])
    one.clear()
    assert one.steps() == []
    assert StateFiles.of_all(tmp_path, ONE_DEVICE) == []


def test_what_numpy_does_not_know_is_kept_without_a_pickle() -> None:
    texts, others = (storable(np.array([["é".encode()], [last]], object)) for last in ("bü", "bä"))
    assert texts.tolist() == [["é".encode()], ["bü".encode()]]
    assert names([step(1, prediction_a=[texts])], [step(1, prediction_a=[texts])]) == []
    assert names([step(1, prediction_a=[texts])], [step(1, prediction_a=[others])]) == [(1, "prediction", "a")]
    assert storable(np.array([True])).dtype.kind == "b"


def jobs(tmp_path: Path, *names: str, **options: Any) -> list[Any]:
    script = tmp_path / "train.py"
    script.touch()
    given = {f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}": one for name, one in options.items()}
    common = {"is_module": False, "steps": 5, "tolerance": 1e-4, "timeout_seconds": 60.0}
    return proof_table.jobs(names, given, (str(script), "--epochs", "3"), **common)


def test_jobs_have_two_replicas_where_nothing_else_is_said(tmp_path: Path) -> None:
    (one,) = jobs(tmp_path)
    assert one.run == ("--strategy", "mirrored", "--replicas-per-worker", "2")
    assert one.script[1:] == ("--epochs", "3")
    assert jobs(tmp_path, n=3)[0].run == ("--strategy", "multi-worker", "-n", "3")
    assert jobs(tmp_path, "parameter-server")[0].run == ("--strategy", "parameter-server", "-n", "2")


def test_columns_of_the_matrix_say_how_many_they_are(tmp_path: Path) -> None:
    pipeline, servers = jobs(tmp_path, "pipeline-2x2", "parameter-server-3")
    assert pipeline.run[:4] == ("--strategy", "pipeline", "-n", "4")
    assert pipeline.variables["TFDIST_MESH"] == "data=2,pipeline=2"
    assert servers.run == ("--strategy", "parameter-server", "-n", "3", "--parameter-servers", "2")
    assert [one.name for one in jobs(tmp_path, "mirrored-?")] == ["mirrored-2", "mirrored-3"]


@pytest.mark.parametrize(
    ("names", "options"), [(["mirrored-2"], {"n": 2}), (["mirrored"], {"n": 2}), (["mirorred"], {})]
)
def test_requests_that_make_no_sense(names: list[str], options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        jobs(tmp_path, *names, **options)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    common: dict[str, Any] = {"is_module": False, "steps": 5, "tolerance": 1e-4, "timeout_seconds": 60.0}
    with pytest.raises(ConfigError):
        proof_table.jobs([], {}, (str(tmp_path / "none.py"),), **common)
