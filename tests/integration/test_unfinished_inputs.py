"""A script ends, whatever its inputs have under way: each kind of input, left unfinished, under every strategy.

Python's last collection waited for ever for a generator that could no longer run. A process that does not end within
the deadline fails, and so does a script that did not reach its last line.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.integration.forks import TAKEN_APART, Forks
from tfdist.cluster import strategy_table
from tfdist.compat.tensorflow import tf_data
from tfdist.variables import STAGES

SCRIPT = Path(__file__).parent / "cases" / "unfinished_inputs.py"
DEADLINE_SECONDS = 300
FEW = ("fit", "predict", "a raising step")
# strategy -> how many write their last line, what `tfdist run` is told, the calls; none: all
JOBS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "mirrored": (1, ("--replicas-per-worker", "2"), ()),
    "multi-worker": (2, ("-n", "2"), ()),
    "ring": (2, ("-n", "2"), FEW),
    "sharded-data-parallel": (2, ("-n", "2"), FEW),
    "parameter-server": (1, ("-n", "2", "--parameter-servers", "1"), FEW),
    "model-parallel": (2, ("-n", "2", "--mesh", "batch=2,model=1"), FEW),
    "pipeline": (2, ("-n", "2"), FEW),
}
ENVIRONMENT = {STAGES.name: "second", TAKEN_APART: "1"}


def test_every_strategy_is_tried() -> None:
    assert sorted(JOBS) == sorted(strategy_table.names())


# which takes its input as multi-worker does
SAME = pytest.param("sharded-data-parallel", marks=pytest.mark.release)


@pytest.mark.parametrize("strategy", [SAME if name in SAME.values else name for name in JOBS])
def test_a_job_ends_whose_inputs_are_unfinished(strategy: str, forking: Forks, tmp_path: Path) -> None:
    processes, options, calls = JOBS[strategy]
    command = ["run", "--strategy", strategy, *options, str(SCRIPT), str(tmp_path), *calls]
    with forking.start("tfdist", *command, **ENVIRONMENT) as job:
        code = job.wait(DEADLINE_SECONDS)
    assert code == 0, job.written[-4000:]
    assert "refused: tfdist" not in job.written, "a thread of tfdist starts at the exit"
    assert len(list(tmp_path.glob("ended.*"))) == processes


def test_an_input_that_waits_for_ever_holds_nothing_up() -> None:
    is_reached, goes_on = threading.Event(), threading.Event()

    def waits() -> Iterator[int]:
        yield 1
        is_reached.set()
        assert goes_on.wait(DEADLINE_SECONDS)
        yield 2

    waiting = tf.data.Dataset.from_generator(waits, output_signature=tf.TensorSpec((), tf.int32)).prefetch(1)
    elements = [iter(waiting), iter(tf.data.Dataset.range(3).prefetch(1))]
    assert [int(next(one)) for one in elements] == [1, 0]
    assert is_reached.wait(DEADLINE_SECONDS)
    try:
        assert tf_data.end(elements[:1], seconds=0.0) == 1
        assert tf_data.end(elements[1:], seconds=DEADLINE_SECONDS) == 0
        assert next(elements[1], None) is None
    finally:
        goes_on.set()
    ending = [thread for thread in threading.enumerate() if thread.name == "tfdist-end-input"]
    for thread in ending:
        thread.join(DEADLINE_SECONDS)
    assert next(elements[0], None) is None


class _Input(tf_data.Released):
    def __init__(self, *, is_bad: bool) -> None:
        self._is_bad = is_bad
        self.is_released = False

    def release(self) -> None:
        if self._is_bad:
            raise RuntimeError("it cannot be ended")
        self.is_released = True


def test_an_input_that_cannot_be_ended_keeps_no_other_from_it() -> None:
    bad, good = _Input(is_bad=True), _Input(is_bad=False)
    tf_data.EndThreads(count=1).end([bad, good], seconds=60.0)
    assert good.is_released
