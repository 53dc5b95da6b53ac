"""Steps on the time of a device: a simulated host hands out steps ahead of a simulated device, in microseconds."""

from pathlib import Path

import numpy as np
import pytest

from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.recording import row_ring
from tfdist.monitor.recording.device_time import DEVICE_BEGIN, DEVICE_END, DEVICE_STAMPS, on_device_time
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.recording.rows import STAMPS, WIDTH, Column
from tfdist.monitor.step_clock import StepClock
from tfdist.monitor.verdict.step_parts import Part, timeline

US = 1000
START = 10**12
PHASES = (Column.CALLBACKS, Column.DISPATCH, Column.INPUT, Column.EXECUTE, Column.AGREE)


def simulated(
    count: int, *, device: float, waits: float = 0.0, **host: float
) -> tuple[np.ndarray, dict[Column, list[int]]]:
    """Rows of steps, and of each of the host's phases how long the device was idle in it, by looking at each moment.

    Args:
        count: of steps.
        device: what a step takes on the device, microseconds in the mean.
        waits: the share of steps at whose end the host waits for the device.
        host: what each of the host's phases takes in the mean, and `between`, what is between two steps.
    """
    draw = np.random.default_rng(0)

    def about(mean: float) -> int:
        return int(draw.integers(0, int(2 * mean) + 1)) if mean else 0

    rows = np.zeros([count, WIDTH + 2], np.int64)
    now, free, idle = 0, 0, {phase: [0] * count for phase in PHASES}
    for number, row in enumerate(rows):
        now += about(host.get("between", 0)) if number else 0
        row[Column.SEQUENCE], row[Column.STEP], row[Column.BEGIN] = number + 1, number, now
        labels: list[Column] = []
        for phase in PHASES[:3]:
            took = about(host.get(phase.name.lower(), 0))
            row[phase] = took
            labels += [phase] * took
        begun = now + len(labels)
        launched = about(host.get("execute", 2))
        reached = max(begun + launched // 2, free)
        done = reached + max(about(device), 4)
        took = max(launched, done - begun if draw.random() < waits else 0)
        row[Column.EXECUTE] = took
        row[Column.AGREE] = about(host.get("agree", 0))
        row[Column.GRAPH_BEGIN], row[Column.GRAPH_END] = begun, begun + launched
        row[Column.FORWARD], row[Column.GRADIENTS] = reached + 1, reached + 2
        row[Column.REDUCED], row[DEVICE_BEGIN], row[DEVICE_END] = reached + 3, reached, done
        for moment, phase in enumerate(labels):
            if max(free, rows[number - 1, Column.END] if number else 0) <= now + moment < reached:
                idle[phase][number] += 1
        now = begun + took + row[Column.AGREE]
        row[Column.END], free = now, done
    times = [*(Column.BEGIN, Column.END), *range(Column.GRAPH_BEGIN, Column.LOSS), DEVICE_BEGIN, DEVICE_END]
    rows[:, times] += START
    rows[:, [*times, *PHASES]] *= US
    rows[0, Column.IS_FIRST] = 1
    return rows, idle


HOSTS: dict[str, dict[str, float]] = {
    "ahead": {"device": 90, "callbacks": 3, "dispatch": 2, "input": 20, "between": 5},
    "behind": {"device": 20, "callbacks": 3, "dispatch": 2, "input": 60, "between": 5, "execute": 8},
    "about as fast": {"device": 40, "callbacks": 5, "dispatch": 5, "input": 20, "between": 5, "execute": 6},
    "waits": {"device": 40, "input": 20, "between": 4, "agree": 10, "execute": 4, "waits": 0.5},
}


@pytest.mark.parametrize("name", HOSTS)
def test_parts_add_up_and_only_what_the_device_waits_for_counts(name: str) -> None:
    rows, idle = simulated(300, **HOSTS[name])
    found = on_device_time(rows)
    assert found.shape == (300, WIDTH)
    steps = timeline({0: found})
    assert len(steps.steps) == 300
    np.testing.assert_allclose(steps.parts.sum(axis=2), steps.step)
    assert (steps.parts >= 0).all()
    whole = found[-1, Column.END] - found[0, Column.BEGIN]
    assert steps.step.sum() * 1e9 == pytest.approx(whole), "no time is counted twice, and none is left out"
    busy = (rows[:, DEVICE_END] - rows[:, DEVICE_BEGIN]).sum()
    computing = [Part.FORWARD, Part.BACKWARD, Part.COMMUNICATION, Part.UPDATE, Part.WAIT]
    agreed = found[:, Column.AGREE].sum()
    assert steps.parts[:, :, computing].sum() * 1e9 == pytest.approx(busy + agreed)
    for phase in (Column.CALLBACKS, Column.DISPATCH, Column.INPUT):
        assert found[:, phase].tolist() == [US * moments for moments in idle[phase]], phase.name


def test_a_host_that_is_ahead_hides_its_input_and_one_that_is_behind_does_not() -> None:
    def share(name: str) -> float:
        steps = timeline({0: on_device_time(simulated(300, **HOSTS[name])[0])})
        return float(steps.of(Part.INPUT).sum() / steps.step.sum())

    assert share("ahead") < 0.05
    assert share("behind") > 0.5


def test_rows_without_a_device_stay_and_an_earlier_end_counts() -> None:
    rows, _ = simulated(4, **HOSTS["ahead"])
    rows[1, [DEVICE_BEGIN, DEVICE_END]] = 0
    found = on_device_time(rows)
    assert found[1].tolist() == rows[1, :WIDTH].tolist()
    rows, _ = simulated(4, **HOSTS["ahead"])
    in_two = [on_device_time(rows[:2]), on_device_time(rows[2:], int(on_device_time(rows)[1, Column.END]))]
    assert np.concatenate(in_two).tolist() == on_device_time(rows).tolist()


def test_steps_wait_to_be_written_until_the_device_has_done_them(tmp_path: Path) -> None:
    now, offset = [10**15], 5 * 10**17
    one = Recorder(tmp_path / "worker-0", clocks=lambda: (now[0] + offset, now[0]))
    clock = StepClock([one], now=lambda: now[0])
    begins: list[int] = []
    done = 0

    def read() -> tuple[int, np.ndarray]:
        found = np.zeros([8, len(DEVICE_STAMPS)])
        for row, begin in zip(found, begins[:done], strict=False):
            times = {Column.GRAPH_BEGIN: 0, Column.GRAPH_END: 10, DEVICE_BEGIN: 5000, DEVICE_END: 9000}
            for column, microseconds in times.items():
                row[column - STAMPS[0]] = (begin + offset + microseconds * US) / 1e9
        return done, found

    one.take_stamps_from(read, of_device=True)

    def step(kind: Kind = Kind.TRAIN) -> None:
        with clock.step(kind, Phase.INPUT):
            now[0] += 100 * US
            clock.enter(Phase.EXECUTE)
            if kind is Kind.TRAIN:
                begins.append(now[0])
            now[0] += 1000 * US

    def written() -> list[int]:
        return row_ring.read(one.path)[:, Column.STEP].tolist()

    for _ in range(3):
        step()
    one.flush(all_steps=False)
    assert written() == []
    done = 2
    one.flush(all_steps=False)
    assert written() == [0, 1]
    step(Kind.TEST)
    one.flush(all_steps=False)
    assert written() == [0, 1], "a step that no device stamps keeps its place"
    done = 3
    one.flush(all_steps=False)
    assert written() == [0, 1, 2, 3]
    found = row_ring.read(one.path)
    assert (found[:3, Column.GRAPH_END] - np.array(begins)).tolist() == pytest.approx([9000 * US] * 3, abs=US)
    assert found[3, Column.GRAPH_END] == 0
    step()
    one.close()
    found = row_ring.read(one.path)
    assert found[:, Column.STEP].tolist() == list(range(5)), "at the end all are written"
