"""The verdict on simulated jobs: who is late, by what, and that nobody is blamed for noise; and parts that add up."""

import contextlib
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import absent
from tests.simulated_steps import MS, USUAL, simulated
from tfdist.monitor.recording.row_ring import Ring
from tfdist.monitor.recording.rows import WIDTH, Column
from tfdist.monitor.verdict.alerts import Kind, alerts
from tfdist.monitor.verdict.job_bound import FEWEST, Bound, judge, lines, recent
from tfdist.monitor.verdict.step_parts import Part, Timeline, of_workers, timeline, what_is_longer
from tfdist.monitor.verdict.stragglers import slow_workers

LATE = [part for part in USUAL if part != "communication"]


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_who_is_late_is_named_with_the_cause(workers: int, share: float) -> None:
    cases = itertools.product(LATE, range(workers), range(5))
    wrong = []
    for part, worker, seed in cases:
        verdict = judge(timeline(simulated(workers, noise=0.1, seed=seed, late=(worker, part, 20 * share))))
        if (verdict.bound, verdict.rank, verdict.part) != (Bound.STRAGGLER, worker, Part[part.upper()]):
            wrong.append((part, worker, seed, verdict.bound, verdict.rank, verdict.part))
        else:
            assert verdict.won_seconds == pytest.approx(0.02 * share, rel=0.25)
    assert not wrong


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.3])
def test_nobody_is_blamed_for_noise(noise: float) -> None:
    for workers, seed in itertools.product([1, 2, 4], range(30)):
        verdict = judge(timeline(simulated(workers, steps=100, noise=noise, seed=seed)))
        assert (verdict.rank, verdict.bound) in ((None, Bound.COMPUTING), (None, Bound.UNEVEN)), (
            workers,
            seed,
            verdict,
        )


@pytest.mark.parametrize(
    ("part", "bound"),
    [
        ("input", Bound.INPUT),
        ("communication", Bound.COMMUNICATION),
        ("update", Bound.UPDATE),
        ("python", Bound.PYTHON),
        ("forward", Bound.COMPUTING),
        ("backward", Bound.COMPUTING),
    ],
)
def test_what_all_workers_wait_for_is_what_the_job_is_bound_by(part: str, bound: Bound) -> None:
    verdict = judge(timeline(simulated(3, usual={**USUAL, part: 30.0})))
    assert (verdict.bound, verdict.rank) == (bound, None)
    if bound is not Bound.COMPUTING:
        assert verdict.won == pytest.approx(30 / (19 - USUAL[part] + 31), abs=0.1)


def test_what_one_of_two_takes_longer_for_is_not_what_both_are_bound_by() -> None:
    # as recorded: garbage of one worker, by a tenth of a step, where the others' Python is as long
    usual = {"input": 1.3, "forward": 7.9, "backward": 13.9, "communication": 3.1, "update": 3.2, "python": 5.5}
    verdict = judge(timeline(simulated(2, late=(0, "python", 3.0), usual=usual, noise=0.02)))
    assert (verdict.bound, verdict.rank, verdict.part) == (Bound.STRAGGLER, 0, Part.PYTHON)
    assert judge(timeline(simulated(2, usual={**usual, "python": 8.0}, noise=0.02))).bound is Bound.PYTHON


def in_input(*milliseconds: np.ndarray | float, steps: int = 60) -> Timeline:
    """Steps in which each worker takes so long for its input, and then waits for the slowest."""
    found = timeline(simulated(len(milliseconds), steps))
    own, parts = np.stack([np.broadcast_to(one, steps) for one in milliseconds], axis=1) / 1e3, 0 * found.parts
    parts[:, :, Part.INPUT], parts[:, :, Part.WAIT] = own, own.max(axis=1, keepdims=True) - own
    return replace(found, parts=parts, step=parts.sum(axis=2))


def slow_in(*runs: tuple[int, int]) -> np.ndarray:
    """30 ms in these steps, and 20 ms in the others."""
    at = np.arange(60)
    return 20.0 + 10.0 * np.any([(at >= first) & (at <= last) for first, last in runs], axis=0)


def test_a_slow_worker_is_told_with_the_steps_and_what_the_others_waited() -> None:
    found = in_input(20.0, slow_in((5, 28), (31, 59)), 22.0)
    (slow,) = slow_workers(found)
    assert (slow.worker, slow.part, slow.steps, slow.goes_on) == (1, Part.INPUT, 29, True)
    assert (slow.first, slow.last) == (31, 59)
    assert (slow.seconds, slow.others, slow.waited) == pytest.approx((0.03, 0.021, 8 / 30))
    assert [slow.began, slow.ended] == [found.ends[31, 1], found.ends[59, 1]]
    assert not absent(slow.text, "worker 1 ", "9 ms", "29 steps")


@pytest.mark.parametrize(
    ("others", "first", "last", "times"),
    [
        ((20.0, 20.0), 31, 50, [(20, False)]),
        ((20.0, 20.0), 31, 49, []),
        ((28.8, 28.8), 31, 59, []),  # the others hardly wait
        ((20.0, np.linspace(10.0, 30.0, 60)), 31, 59, []),  # that is usual
    ],
)
def test_who_is_slow_by_itself(others: Any, first: int, last: int, times: list[tuple[int, bool]]) -> None:
    found = in_input(others[0], slow_in((first, last)), others[1])
    assert [(slow.steps, slow.goes_on) for slow in slow_workers(found) if slow.worker == 1] == times
    assert slow_workers(found.only(slice(0))) == []


def test_a_pause_now_and_then_is_no_slow_worker() -> None:
    assert judge(timeline(simulated(2, late=(1, "forward", 200.0), every=10))).rank is None


def test_two_causes_of_one_worker_are_not_taken_for_one() -> None:
    usual = dict(USUAL)
    both = simulated(2, usual=usual, late=(1, "forward", 5.0), noise=0.02)
    other = simulated(2, usual=usual, late=(1, "update", 5.0), noise=0.02)
    mixed = {rank: np.concatenate([both[rank][:100], other[rank][100:]]) for rank in both}
    assert judge(timeline(mixed)).part is None


def test_a_late_update_is_told_beside_passes_that_are_a_little_longer() -> None:
    """The numbers are from a busy machine: steps of a few milliseconds, an update 80 ms late on one worker."""
    usual, late = np.zeros(len(Part)), np.zeros(len(Part))
    usual[[Part.FORWARD, Part.BACKWARD, Part.UPDATE, Part.PYTHON]] = 0.8, 0.7, 0.9, 2.4
    late[[Part.FORWARD, Part.BACKWARD, Part.UPDATE, Part.PYTHON]] = 1.3, 1.1, 81.0, 3.2
    assert what_is_longer(late, usual)[0] is Part.UPDATE
    slow = usual.copy()
    slow[[Part.FORWARD, Part.BACKWARD, Part.UPDATE, Part.PYTHON]] *= 1.5
    usual[Part.UPDATE] = slow[Part.UPDATE] = 9.0
    slow[Part.UPDATE] *= 1.5
    assert what_is_longer(slow, usual)[0] is Part.COMPUTE, "an update that takes most of a step, on a slow processor"


@pytest.mark.parametrize("workers", [2, 3])
def test_a_slow_processor_is_one_cause(workers: int) -> None:
    for worker, share, seed in itertools.product(range(workers), (0.25, 0.5), range(5)):
        late = (worker, "computing", 20 * share)
        found = timeline(simulated(workers, noise=0.1, seed=seed, late=late))
        verdict = judge(found)
        assert (verdict.bound, verdict.rank, verdict.part) == (Bound.STRAGGLER, worker, Part.COMPUTE)
        where, evidence = lines(verdict)[1], lines(verdict)[3]
        assert f"worker {worker} computes longer" in where
        # one computes for 17 ms and what is added, the others for 17 ms
        mine, other = (float(ms) for ms in re.findall(r"([0-9.]+) ms", evidence))
        assert mine - other == pytest.approx(20 * share, rel=0.25)
        (slow,) = slow_workers(timeline(simulated(workers, noise=0.02, seed=seed, late=late)))
        assert (slow.worker, slow.part) == (worker, Part.COMPUTE)


@pytest.mark.parametrize("part", ["update", "python", "forward"])
def test_an_agreement_between_two_steps_is_a_wait_for_the_last_worker(part: str) -> None:
    found = timeline(simulated(3, noise=0.05, late=(1, part, 8.0), agree=True))
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    verdict = judge(found)
    assert (verdict.bound, verdict.rank, verdict.part) == (Bound.STRAGGLER, 1, Part[part.upper()])
    assert judge(timeline(simulated(3, noise=0.05, agree=True))).rank is None


def of_a_chief(late: float, workers: int = 3, steps: int = 100) -> dict[int, np.ndarray]:
    """Rows of a chief that waits for its workers, the second of which takes so many ms longer."""
    chance = np.random.default_rng(0)
    rows = np.zeros([steps, WIDTH], np.int64)
    takes = 20 * chance.lognormal(0, 0.05, [steps, workers])
    takes[:, min(1, workers - 1)] += late
    rows[:, Column.SEQUENCE], rows[:, Column.STEP] = range(1, steps + 1), range(steps)
    rows[:, Column.COMPUTED : Column.COMPUTED + workers] = takes * MS
    rows[:, Column.WAIT], rows[:, Column.UPDATE] = takes.max(axis=1) * MS, 3 * MS
    lengths = rows[:, Column.WAIT] + rows[:, Column.UPDATE]
    rows[:, Column.END] = 10**12 + np.cumsum(lengths + MS)
    rows[:, Column.BEGIN] = rows[:, Column.END] - lengths
    return {0: rows}


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_chief_tells_which_of_its_workers_is_slow(workers: int) -> None:
    rows = of_a_chief(6.0, workers)
    found = timeline(of_workers(rows))
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    np.testing.assert_array_equal(found.step[:, 0], timeline(rows).step[:, 0], "a step is the chief's")
    verdict = judge(found)
    assert (verdict.bound, verdict.rank, verdict.part) == (Bound.STRAGGLER, 1, Part.COMPUTE)
    assert "worker 1 computes longer" in lines(verdict)[1]
    assert judge(timeline(of_workers(of_a_chief(0.0, workers)))).rank is None


def test_an_alert_names_a_slow_worker_of_a_chief(tmp_path: Path) -> None:
    for late, names in ((0.0, []), (6.0, [1])):
        folder = tmp_path / str(late)
        folder.mkdir()
        with contextlib.closing(Ring(folder / "worker-0")) as ring:
            ring.add(of_a_chief(late)[0])
            found = recent(folder)
        assert found is not None
        assert [alert.worker for alert in alerts(found) if alert.kind is Kind.SLOW_WORKER] == names


def telling(
    rows: dict[int, np.ndarray], forward: np.ndarray, backward: np.ndarray, loss: float = 0.5
) -> dict[int, np.ndarray]:
    """The same, where each worker tells how many ms its passes took, and its loss; the first one's is 1 more."""
    told = {0: rows[0].copy()}
    workers = len(forward)
    for block, ms in ((Column.FORWARDS, forward), (Column.BACKWARDS, backward)):
        told[0][:, block : block + workers] = np.asarray(ms) * MS
    losses = loss + np.eye(1, workers)
    told[0][:, Column.LOSSES : Column.LOSSES + workers] = np.ascontiguousarray(losses).view(np.int64)
    return told


@pytest.mark.parametrize(
    ("part", "forward", "backward"),
    [
        (Part.FORWARD, [4.0, 10.0, 4.0], [8.0, 8.0, 8.0]),
        (Part.BACKWARD, [4.0, 4.0, 4.0], [8.0, 14.0, 8.0]),
        (Part.COMPUTE, [4.0, 6.0, 4.0], [8.0, 12.0, 8.0]),  # both by the same factor
        (Part.COMMUNICATION, [4.0, 4.0, 4.0], [8.0, 8.0, 8.0]),  # what is left: its link
    ],
)
def test_a_chiefs_worker_that_tells_of_its_passes_is_named_with_the_cause(
    part: Part, forward: list[float], backward: list[float]
) -> None:
    rows = telling(of_a_chief(6.0), np.array(forward), np.array(backward))
    found = timeline(of_workers(rows))
    assert found.is_divided
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    verdict = judge(found)
    assert (verdict.bound, verdict.rank, verdict.part) == (Bound.STRAGGLER, 1, part)
    assert len(lines(verdict)) == 5
    np.testing.assert_allclose(found.loss, [[1.5, 0.5, 0.5]] * len(found.steps))
    alike = judge(timeline(of_workers(telling(of_a_chief(0.0), np.full(3, 4.0), np.full(3, 8.0)))))
    assert (alike.bound, alike.rank) == (Bound.COMMUNICATION, None)
    assert "--parameter-servers" in lines(alike)[4]


def test_a_chief_itself_shows_the_passes_of_the_worker_it_waited_for_and_the_loss_of_all() -> None:
    rows = telling(of_a_chief(60.0), np.array([4.0, 10.0, 4.0]), np.array([8.0, 50.0, 8.0]))
    found = timeline(rows)
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    np.testing.assert_allclose(found.of(Part.FORWARD), 0.010)
    np.testing.assert_allclose(found.of(Part.BACKWARD), 0.050)
    np.testing.assert_allclose(found.of(Part.COMPUTE), 0.0, atol=1e-12)
    np.testing.assert_allclose(found.loss, 0.5 + 1 / 3)
    assert not alerts(found)
    (alert,) = alerts(timeline(telling(rows, np.full(3, 4.0), np.full(3, 8.0), loss=float("nan"))))
    assert (alert.kind, alert.worker) == (Kind.LOSS_NOT_FINITE, None)


def test_nobody_waits_for_workers_that_compute_other_batches() -> None:
    rows = telling(of_a_chief(6.0), np.full(3, 4.0), np.full(3, 8.0))
    rows[0][:, Column.COMPUTED : Column.COMPUTED + 3] = 0
    found = timeline(of_workers(rows))
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    assert not found.of(Part.FORWARD).any()
    np.testing.assert_allclose(found.loss, 0.5 + 1 / 3)


def test_a_worker_that_is_gone_is_not_waited_for_in_a_verdict() -> None:
    (chief,) = of_a_chief(6.0, 4, steps=400).values()
    chief[200:, Column.COMPUTED + 3] = 0  # gone
    chief[::50, Column.COMPUTED] = 0  # another one did its part
    found = timeline(of_workers({0: chief}))
    assert found.ranks == (0, 1, 2)
    assert len(found.steps) == 400 - 8
    assert judge(found).rank == 1


@pytest.mark.parametrize("rows", [{}, simulated(2), of_a_chief(6.0, workers=1), {0: np.zeros([0, WIDTH], np.int64)}])
def test_rows_that_tell_of_no_workers_stay_as_they_are(rows: dict[int, np.ndarray]) -> None:
    assert of_workers(rows) is rows


def test_parts_add_up_to_the_step() -> None:
    found = timeline(simulated(3, noise=0.3))
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    assert (found.parts >= 0).all()
    assert found.is_divided


def test_waiting_is_for_those_who_come_last() -> None:
    found = timeline(simulated(2, noise=0.0, late=(1, "backward", 7.0)))
    np.testing.assert_allclose(found.of(Part.WAIT), [[0.007, 0.0]] * 200, atol=1e-8)
    np.testing.assert_allclose(found.of(Part.COMMUNICATION), 0.002, atol=1e-8)


def test_communication_beside_the_backward_pass_is_counted_once_and_in_no_part() -> None:
    rows = simulated(2, steps=FEWEST, noise=0.0)
    for row in rows.values():
        gradients = row[:, Column.GRADIENTS]
        for bucket, (arrived, ended) in enumerate([(8.0, 5.0), (7.0, 3.0), (1.0, -1.0)]):  # ms before the last gradient
            row[:, Column.ARRIVALS + bucket] = gradients - int(arrived * MS)
            row[:, Column.COMPLETIONS + bucket] = gradients - int(ended * MS)
    found = timeline(rows)
    np.testing.assert_allclose(found.hidden, 0.006, atol=1e-8)  # 8 to 3, and 1 to 0
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)


def test_steps_that_not_all_workers_have_are_left_out() -> None:
    rows = simulated(2, steps=30)
    rows[1] = rows[1][5:]
    rows[0][7, Column.TRACE] = 1
    rows[1][3, Column.KIND] = 1  # of validation: step 8
    found = timeline(rows)
    assert found.steps.tolist() == [5, 6, *range(9, 30)]


def test_without_stamps_the_host_tells_what_it_knows() -> None:
    rows = simulated(2, usual={**USUAL, "input": 30.0})
    for row in rows.values():
        row[:, Column.GRAPH_BEGIN :] = 0
    found = timeline(rows)
    assert not found.is_divided
    assert (found.of(Part.FORWARD) == 0).all()
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=1e-9)
    assert judge(found).bound is Bound.INPUT


@pytest.mark.parametrize("rows", [{}, {0: np.zeros([0, WIDTH], np.int64)}, simulated(2, steps=3)])
def test_too_few_steps(rows: dict[int, np.ndarray]) -> None:
    verdict = judge(timeline(rows))
    assert verdict.bound is Bound.UNKNOWN
    assert len(lines(verdict)) == 5


@pytest.mark.parametrize("late", [None, *[(1, part, 10.0) for part in LATE]])
def test_five_lines_say_who_and_what_to_do(late: tuple[int, str, float] | None) -> None:
    found = lines(judge(timeline(simulated(3, late=late))))
    assert [line.split()[0] for line in found] == ["verdict", "where", "won", "evidence", "next"]
    if late is not None:
        assert "worker 1" in found[1]
        assert late[1] in found[3]


def last(found: Timeline) -> list[int]:
    return [int(step) for step in found.steps]


def test_the_last_steps() -> None:
    assert last(timeline(simulated(1, steps=30)).last(3)) == [27, 28, 29]
