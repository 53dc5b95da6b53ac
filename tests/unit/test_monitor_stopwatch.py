"""The stopwatch of `tfdist tune`: what it measures of the steps that it is told of, and when it ends them."""

from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.monitor.phases import Kind
from tfdist.monitor.step_clock import StepClock
from tfdist.monitor.stopwatch import Request, Stopwatch, read

SECOND = 10**9


def trained(clock: StepClock, examples: int) -> None:
    clock.begin(Kind.TRAIN)
    clock.trained(examples, replicas=2)
    clock.end()


def test_steps_of_training_are_measured_and_then_ended(tmp_path: Path) -> None:
    now, settled = [0], []

    def settle() -> None:
        settled.append(True)
        now[0] += SECOND  # the devices had work left

    watch = Stopwatch(
        Request(folder=str(tmp_path), warm_up=2, steps=9), 1, settle=settle, device_memory=lambda: 7, now=lambda: now[0]
    )
    clock = StepClock([watch], now=lambda: now[0])
    for step, examples in enumerate([8] * 10):
        if step == 4:
            clock.epoch_ends()
            clock.epoch_ends()
            now[0] += 100 * SECOND  # validation, and what callbacks do
            clock.begin(Kind.TEST)
            clock.end()
            now[0] += 100 * SECOND
        trained(clock, examples)
        now[0] += step * SECOND
    trained(clock, 4)
    with pytest.raises(SystemExit) as ended:
        trained(clock, 4)
    assert ended.value.code == 0
    (found,) = read(tmp_path)
    # each: the wait for the devices at its end, and what came between the steps before; the one of step 3 has both
    # sides of the end of the epoch
    assert found.blocks == [(8, 1.0), (8, 3.0), (8, 5.0), *[(8, float(n)) for n in (5, 6, 7, 8, 9)], (4, 10.0)]
    assert (found.steps, found.examples, found.replicas, found.device_memory) == (11, 8, 2, 7)
    assert found.memory > 1_000_000
    assert len(settled) == 11  # before it measures, at the end of each block, and at that of the epoch


def test_it_is_asked_for_by_the_environment(tmp_path: Path) -> None:
    assert Stopwatch.from_environment({}) is None
    asked = {**Request(folder=str(tmp_path), warm_up=1, steps=1).to_environment(), "TFDIST_WORKER_INDEX": "3"}
    watch = Stopwatch.from_environment(asked)
    assert watch is not None
    clock = StepClock([watch])
    for _ in range(2):
        trained(clock, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-3.json"]
    with refused(ConfigError, name="TFDIST_STOPWATCH", received="x"):
        Stopwatch.from_environment({"TFDIST_STOPWATCH": "x"})
