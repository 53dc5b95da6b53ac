"""Recording: the ring of a worker's last steps, and how the host's phases and the graph's stamps become rows."""

import gc
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tests.simulated_steps import Driven
from tfdist.cli.main import main
from tfdist.errors import ConfigError
from tfdist.monitor.phases import Activity, Kind, Passes, Phase
from tfdist.monitor.recording import chrome_trace, row_ring
from tfdist.monitor.recording.recorder import FLUSH_SECONDS, MOST_STEPS, Recorder, joined, on_monotonic_clock
from tfdist.monitor.recording.row_ring import Ring
from tfdist.monitor.recording.rows import CHIEF_WORKERS, STAMPS, WIDTH, Column
from tfdist.monitor.step_clock import StepClock
from tfdist.variables import MONITOR_DIR

FIRST = STAMPS[0]


def rows(count: int, first: int = 0) -> np.ndarray:
    found = np.zeros([count, WIDTH], np.int64)
    found[:, Column.STEP] = range(first, first + count)
    return found


def test_the_ring_keeps_the_last_rows(tmp_path: Path) -> None:
    one = Ring(tmp_path / "worker-0")
    assert row_ring.read(one.path).shape == (0, WIDTH)
    for first in range(0, 5000, 500):
        one.add(rows(500, first))
    found = row_ring.read(one.path)
    assert found[:, Column.STEP].tolist() == list(range(5000 - row_ring.ROWS, 5000))
    assert found[:, Column.SEQUENCE].tolist() == list(range(5001 - row_ring.ROWS, 5001))
    size = one.path.stat().st_size
    one.add(rows(3 * row_ring.ROWS, 5000))  # more than it holds
    assert row_ring.read(one.path)[-1, Column.STEP] == 5000 + 3 * row_ring.ROWS - 1
    assert one.path.stat().st_size == size
    one.close()
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0"]


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    one = Ring(tmp_path / "worker-0")
    one.add(rows(3))
    one._rows[1, Column.SEQUENCE] = 0
    assert row_ring.read(one.path)[:, Column.STEP].tolist() == [0, 2]
    one.close()


def test_a_row_that_is_overwritten_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Ring(tmp_path / "worker-0")
    one.add(rows(row_ring.ROWS))
    from_file = np.fromfile

    def meanwhile(*given: Any) -> np.ndarray:
        found = from_file(*given)
        one.add(rows(1, row_ring.ROWS))
        return found

    monkeypatch.setattr(np, "fromfile", meanwhile)
    assert row_ring.read(one.path)[:, Column.STEP].tolist() == list(range(1, row_ring.ROWS))
    one.close()


@pytest.mark.parametrize("content", [b"", b"x", bytes(8 * 20), bytes(8 * (8 + row_ring.ROWS * WIDTH))])
def test_what_is_no_ring_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with refused(ConfigError, path=tmp_path / "file"):
        row_ring.read(tmp_path / "file")


def test_nobody_records_without_being_asked(tmp_path: Path) -> None:
    assert Recorder.from_environment({}) is None
    missing = {MONITOR_DIR.name: str(tmp_path / "missing")}
    assert Recorder.from_environment(missing) is None, "training goes on where nothing can be recorded"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 10**15

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def recorded(tmp_path: Path, clock: Clock, offset: int = 5 * 10**17) -> tuple[Recorder, StepClock]:
    one = Recorder(tmp_path / "worker-0", clocks=lambda: (clock.now + offset, clock.now))
    return one, StepClock([one], now=clock)


def test_host_phases_add_up_to_a_row(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)
    for kind in (Kind.TRAIN, Kind.TRAIN, Kind.TEST):
        with clock.doing(Activity.SAVING):
            now.now += 7_000_000
        with clock.step(kind, Phase.INPUT):
            clock.enter(Phase.EXECUTE)
            now.now += 1_000_000
    one.on_epoch_end()
    found = row_ring.read(one.path)
    assert found[:, Column.KIND].tolist() == [0, 0, 1]
    assert found[:, Column.IS_FIRST].tolist() == [1, 0, 0]
    host = found[:, Column.CALLBACKS : Column.GRAPH_BEGIN].sum(axis=1)
    assert host.tolist() == (found[:, Column.END] - found[:, Column.BEGIN]).tolist()
    assert (found[:, Column.SAVING] >= 7_000_000).all()
    assert (found[:, Column.GRAPH_BEGIN :] == 0).all()


def test_parts_of_a_chiefs_workers_add_up_and_the_last_loss_stays(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)
    for _ in range(2):
        with clock.step(Kind.TRAIN, Phase.WAIT):
            clock.computed(0, 0.003, Passes(forward=0.001, backward=0.0015, loss=7.0))
            clock.computed(1, 0.005)
            clock.computed(0, 0.002, Passes(forward=0.0005, backward=0.001, loss=-2.5))
            clock.computed(CHIEF_WORKERS, 1.0)  # nobody keeps it
    one.on_epoch_end()
    found = row_ring.read(one.path)
    for block, told in ((Column.COMPUTED, [5, 5]), (Column.FORWARDS, [1.5, 0]), (Column.BACKWARDS, [2.5, 0])):
        expected = [ms * 1_000_000 for ms in told] + [0] * (CHIEF_WORKERS - 2)
        assert found[:, block : block + CHIEF_WORKERS].tolist() == [expected] * 2
    losses = found[:, Column.LOSSES : Column.LOSSES + CHIEF_WORKERS].copy().view(np.float64)
    assert losses.tolist() == [[-2.5, *[0.0] * (CHIEF_WORKERS - 1)]] * 2


def test_agreements_between_two_steps_are_told_from_other_time(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)
    for number in range(3):
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            now.now += 1_000_000
            with clock.during(Phase.AGREE):  # a part of the step
                now.now += 500_000
        now.now += 3_000_000
        for _ in range(number):
            with clock.during(Phase.AGREE):
                now.now += 2_000_000
        with clock.doing(Activity.SAVING):
            now.now += 7_000_000
    one.on_epoch_end()
    found = row_ring.read(one.path)
    assert (np.round(found[:, Column.AGREED] / 1e6) == [0, 0, 2]).all()
    assert (np.round(found[:, Column.SAVING] / 1e6) == [0, 7, 7]).all()
    assert (np.round(found[:, Column.AGREE] / 1e5) == [5, 5, 5]).all()


def test_memory_is_flat_over_many_steps(tmp_path: Path) -> None:
    driven = Driven(tmp_path)

    def after(steps: int) -> tuple[int, int, int]:
        longest = 0
        for _ in range(steps):
            driven.step()
            longest = max(longest, len(driven.recorder._steps) + len(driven.recorder._open))
        driven.recorder.flush()
        gc.collect()
        return longest, sys.getallocatedblocks(), driven.recorder.path.stat().st_size

    longest, blocks, size = after(2 * row_ring.ROWS)
    more_longest, more_blocks, more_size = after(100_000)
    assert more_size == size
    assert max(longest, more_longest) <= MOST_STEPS
    assert more_blocks - blocks < 500, "one block in 200 steps would be as many"
    found = row_ring.read(driven.recorder.path)
    assert found[:, Column.SEQUENCE].tolist() == list(range(driven.count + 1 - row_ring.ROWS, driven.count + 1))
    assert (found[:, Column.GRAPH_BEGIN] > 0).all()
    driven.recorder.close()


def stamps_at(begins: list[int], offset: int) -> np.ndarray:
    """Rows of stamps, as the graph writes them: each 100 us after the one before."""
    found = np.zeros([len(begins), len(STAMPS)])
    for row, begin in zip(found, begins, strict=True):
        row[:5] = [(begin + offset + number * 100_000) / 1e9 for number in range(5)]
        row[Column.LOSS - FIRST] = 0.25
        row[Column.REDUCTIONS - FIRST] = 1
    return found


def test_stamps_come_to_the_step_in_whose_time_they_lie(tmp_path: Path) -> None:
    now, offset = Clock(), 5 * 10**17
    one, clock = recorded(tmp_path, now, offset)
    begins: list[int] = []
    one.take_stamps_from(lambda: (len(begins), stamps_at(begins, offset)))
    for _ in range(3):
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            begins.append(now.now + 50_000)
            now.now += 1_000_000
    one.flush()
    found = row_ring.read(one.path)
    assert (abs(found[:, Column.GRAPH_BEGIN] - begins) < 1000).all()
    assert (abs(found[:, Column.GRAPH_END] - found[:, Column.GRAPH_BEGIN] - 400_000) < 1000).all()
    assert np.ascontiguousarray(found[:, Column.LOSS]).view(np.float64).tolist() == [0.25] * 3
    one.flush()
    assert len(row_ring.read(one.path)) == 3


def test_stamps_of_a_step_that_is_under_way_wait_for_its_end(tmp_path: Path) -> None:
    now, offset = Clock(), 5 * 10**17
    one, clock = recorded(tmp_path, now, offset)
    begins: list[int] = []
    one.take_stamps_from(lambda: (len(begins), stamps_at(begins, offset)))
    for _ in range(3):
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            begins.append(now())
            now.now += 1_000_000
            one.flush()  # by the thread beside
    one.flush()
    found = row_ring.read(one.path)
    assert found[:, Column.GRAPH_BEGIN].tolist() == pytest.approx(begins, abs=1000)


def test_a_thread_beside_the_steps_writes(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)
    with clock.step(Kind.TRAIN, Phase.EXECUTE):
        now.now += round(2e9 * FLUSH_SECONDS)
    deadline = time.monotonic() + 60
    while not len(row_ring.read(one.path)):
        assert time.monotonic() < deadline
    one.close()
    one.flush()  # after its end it writes nothing


def test_steps_do_not_gather_after_writing_has_failed(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)

    def read() -> tuple[int, np.ndarray]:
        raise RuntimeError("the ring of the graph is gone")

    one.take_stamps_from(read, of_device=True)
    with clock.step(Kind.TRAIN, Phase.EXECUTE):
        now.now += round(2e9 * FLUSH_SECONDS)
    assert one._writer is not None
    one._writer.join(60)
    assert not one._writer.is_alive()
    for _ in range(3):
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            pass
    assert not one._steps
    one.on_epoch_end()
    one.close()


def test_stamps_are_not_believed_where_the_wall_clock_was_set(tmp_path: Path) -> None:
    now, offsets = Clock(), [10**17]
    one = Recorder(tmp_path / "worker-0", clocks=lambda: (now.now + offsets[-1], now.now))
    clock = StepClock([one], now=now)
    one.take_stamps_from(lambda: (1, stamps_at([now.now - 900_000], offsets[0])))
    with clock.step(Kind.TRAIN, Phase.EXECUTE):
        now.now += 1_000_000
    offsets.append(10**17 + 10**9)
    one.flush()
    assert row_ring.read(one.path)[0, Column.GRAPH_BEGIN] == 0


def test_several_steps_of_a_graph_in_one_of_the_host() -> None:
    step = rows(1)[0]
    step[Column.BEGIN], step[Column.END], step[Column.DISPATCH], step[Column.EXECUTE] = 1000, 2000, 100, 900
    stamps = np.zeros([3, len(STAMPS)], np.int64)
    for row, begin in zip(stamps, (1150, 1400, 1700), strict=True):
        row[:5] = [begin, begin + 50, begin + 100, begin + 150, begin + 200]
    found = joined(np.array([step]), stamps)
    assert found[:, Column.PART].tolist() == [0, 1, 2]
    assert found[:, Column.BEGIN].tolist() == [1000, 1350, 1600]
    assert found[:, Column.END].tolist() == [1350, 1600, 2000]
    assert found[:, Column.INPUT].tolist() == [50, 50, 100]
    host = found[:, Column.CALLBACKS : Column.GRAPH_BEGIN].sum(axis=1)
    assert host.tolist() == (found[:, Column.END] - found[:, Column.BEGIN]).tolist()


def test_what_was_not_seen_stays_zero() -> None:
    assert (on_monotonic_clock(np.zeros([2, len(STAMPS)]), 10**18) == 0).all()


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    now = Clock()
    one, clock = recorded(tmp_path, now)
    with clock.step(Kind.TRAIN, Phase.EXECUTE):
        pass
    one._process = os.getpid() + 1
    one.flush()
    assert not len(row_ring.read(one.path))


def stamped_rows(shift: int = 0, steps: int = 5) -> np.ndarray:
    """Rows of steps of 1 ms: 100 us of input, then 200 us for each stretch of the graph; the clock is ahead."""
    found = rows(steps)
    for number, row in enumerate(found):
        begin = 10**12 + number * 1_000_000 + shift
        row[Column.SEQUENCE], row[Column.BEGIN], row[Column.END] = number + 1, begin, begin + 950_000
        row[Column.INPUT], row[Column.EXECUTE] = 100_000, 850_000
        row[Column.GRAPH_BEGIN : Column.LOSS] = [begin + 100_000 + 200_000 * stamp for stamp in range(5)]
        row[Column.REDUCTIONS] = 1
        row[Column.ARRIVALS], row[Column.COMPLETIONS] = begin + 300_000, begin + 600_000
    return found


def test_a_trace_has_every_step_of_every_worker() -> None:
    made = chrome_trace.trace({0: stamped_rows(), 1: stamped_rows()})
    json.loads(json.dumps(made, allow_nan=False))
    complete = [one for one in made["traceEvents"] if one["ph"] == "X"]
    for worker in (0, 1):
        mine = [one for one in complete if one["pid"] == worker]
        names = [one["name"] for one in mine if one["args" if "args" in one else "ts"] is not None]
        assert names.count("train") == names.count("backward") == names.count("all_reduce") == 5
        first = {one["name"]: (one["ts"], one["dur"]) for one in reversed(mine)}
        assert first["train"] == (0.0, 950.0)
        assert first["input"] == (0.0, 100.0)
        assert first["forward"] == (100.0, 200.0)
        assert first["update"] == (700.0, 200.0)


def test_a_trace_of_steps_without_stamps_has_the_phases_of_the_host() -> None:
    (row,) = found = rows(1)
    row[Column.SEQUENCE], row[Column.BEGIN], row[Column.END] = 1, 10**12, 10**12 + 900_000
    row[Column.DISPATCH], row[Column.INPUT], row[Column.WAIT], row[Column.UPDATE] = 50_000, 100_000, 600_000, 150_000
    row[Column.FORWARDS : Column.FORWARDS + 2] = 200_000
    for loss, shown in ([1.0, 2.0], 1.5), ([1.0, math.nan], "nan"), ([math.inf, 1.0], "inf"):
        row[Column.LOSSES : Column.LOSSES + 2] = np.array(loss).view(np.int64)
        made = chrome_trace.trace({0: found})["traceEvents"]
        json.dumps(made, allow_nan=False)
        events = [(one["name"], one["ts"], one["dur"]) for one in made if one["ph"] == "X"]
        of_host = [("dispatch", 0.0, 50.0), ("input", 50.0, 100.0), ("workers", 150.0, 600.0), ("update", 750.0, 150.0)]
        assert events == [("train", 0.0, 900.0), *of_host]
        assert [one["args"]["loss"] for one in made if one.get("name") == "train"] == [shown]


def test_merged_traces_keep_their_processes_apart(tmp_path: Path) -> None:
    one = chrome_trace.trace({0: stamped_rows(), 1: stamped_rows()})
    both = chrome_trace.merged({"a": one, "b": one})
    names = {event["pid"]: event["args"]["name"] for event in both["traceEvents"] if event["name"] == "process_name"}
    assert names == {0: "a: worker 0", 1: "a: worker 1", 2: "b: worker 0", 3: "b: worker 1"}
    for name in ("a", "b"):
        chrome_trace.write(tmp_path / name, one)
    output = tmp_path / "Ünï.json"
    done = CliRunner().invoke(main, ["trace", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert len(json.loads(output.read_text())["traceEvents"]) == 2 * len(one["traceEvents"])
    (tmp_path / "b").write_text("{}")
    output.unlink()
    refused = CliRunner().invoke(main, ["trace", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(output)])
    assert (refused.exit_code, output.exists()) == (2, False)
    assert "is not a Chrome trace" in refused.output
