"""The stop of all workers before the same step: every interleaving of up to three, then real tables."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tfdist.monitor import reporter as reporting
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.status import HALTED, SETTLE_SECONDS, StatusTable, StepPosition, StepState, target_of
from tfdist.monitor.step_clock import StepClock

TICKS = 3
NOWHERE = StepPosition(step=-1, state=StepState.DONE)


@dataclass(frozen=True)
class Model:
    """A worker: what it has written, and where its program is."""

    position: StepPosition = NOWHERE
    at: str = "look"  # look, start, run, hold, stopped, gone

    @property
    def next_tick(self) -> int:
        return self.position.step + (self.position.state is StepState.DONE)


@dataclass(frozen=True)
class World:
    """The workers and the agent; every step of each is one access to memory."""

    workers: tuple[Model, ...]
    asked: bool = False
    target: int | None = None
    read: tuple[StepPosition | None, ...] = ()  # what the agent has read in this round; None of a worker that is gone


def moves(world: World) -> Iterator[World]:
    for index, worker in enumerate(world.workers):
        for after in worker_moves(worker, world):
            yield replace(world, workers=(*world.workers[:index], after, *world.workers[index + 1 :]))
    if not world.asked:
        yield replace(world, asked=True)
    elif world.target is None:
        yield agent_reads(world)


def worker_moves(worker: Model, world: World) -> Iterator[Model]:
    tick = worker.next_tick
    if worker.at == "look":
        if tick == TICKS:
            yield replace(worker, at="gone")
        elif not world.asked:
            yield replace(worker, at="start")
        elif world.target is None:
            yield Model(position=StepPosition(step=tick, state=StepState.HELD), at="hold")
        else:
            yield replace(worker, at="start" if tick <= world.target else "stopped")
    elif worker.at == "hold" and world.target is not None:
        yield replace(worker, at="start" if worker.position.step <= world.target else "stopped")
    elif worker.at == "start":
        tick = worker.position.step if worker.position.state is StepState.HELD else tick
        yield Model(position=StepPosition(step=tick, state=StepState.RUNNING), at="run")
    elif worker.at == "run" and all(other.position.started >= worker.position.step for other in world.workers):
        yield Model(position=replace(worker.position, state=StepState.DONE))


def agent_reads(world: World) -> World:
    worker = world.workers[len(world.read)]
    read = (*world.read, None if worker.at in ("gone", "stopped") else worker.position)
    if len(read) < len(world.workers):
        return replace(world, read=read)
    target = target_of(position for position in read if position is not None)
    return replace(world, read=() if target is None else read, target=target)


@pytest.mark.parametrize(("count", "states"), [(1, 10), (2, 100), (3, 1000)])
def test_every_interleaving_ends_before_the_same_step(count: int, states: int) -> None:
    first = World(workers=(Model(),) * count)
    seen, waiting, ends = {first}, [first], set()
    while waiting:
        world = waiting.pop()
        following = [after for after in moves(world) if after != world]
        if not following:
            ends.add((frozenset(w.at for w in world.workers), frozenset(w.position.started for w in world.workers)))
        for after in following:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    assert len(seen) > states, "the model does not go anywhere"
    gone = {(frozenset({"gone"}), frozenset({TICKS - 1}))}
    assert ends == gone | {(frozenset({"stopped"}), frozenset({tick})) for tick in range(-1, TICKS - 1)}


def test_the_target_is_not_known_too_early() -> None:
    def at(tick: int, standing: StepState) -> StepPosition:
        return StepPosition(step=tick, state=standing)

    assert target_of([]) is None
    assert target_of([at(4, StepState.DONE), at(5, StepState.HELD)]) is None
    assert target_of([at(0, StepState.HELD), at(0, StepState.HELD)]) == -1
    assert target_of([at(5, StepState.RUNNING), at(6, StepState.HELD), at(5, StepState.HELD)]) == 5


@pytest.mark.parametrize("seed", range(5))
def test_real_tables(seed: int, tmp_path: Path) -> None:
    count, last, codes = 3, {}, set()
    table = StatusTable(tmp_path / "table", count)
    barrier = threading.Barrier(count)

    def work(worker: int) -> None:
        reporter, steps = StatusReporter(table.path, worker), 0
        clock = StepClock([reporter])
        try:
            while True:
                with clock.step(Kind.TRAIN, Phase.EXECUTE):
                    barrier.wait(200)
                steps += 1
        except SystemExit as ended:
            codes.add(ended.code)
        last[worker] = steps
        reporter.close()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(count)]
    for thread in threads:
        thread.start()
    wish = random.Random(seed).randrange(1, 300)
    while table.read(0).position.step < wish:
        pass
    table.ask_to_halt()
    threading.Event().wait(SETTLE_SECONDS)
    while (target := target_of(table.read(worker).position for worker in range(count))) is None:
        pass
    table.set_target(target)
    for thread in threads:
        thread.join(200)
    table.close()
    assert last == dict.fromkeys(range(count), target + 1)
    assert codes == {HALTED}


def test_a_request_that_is_taken_back(tmp_path: Path) -> None:
    table = StatusTable(tmp_path / "table", 1)
    reporter = StatusReporter(table.path, 0)
    clock, done = StepClock([reporter]), threading.Event()

    def work() -> None:
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            done.set()

    table.ask_to_halt()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while table.read(0).position.state is not StepState.HELD:
        pass
    table.take_back()
    table.ask_to_halt()  # at once: that it holds for the first request says nothing about the second
    if table.read(0).position.state is StepState.DONE:
        assert table.read(0).position.step <= 0
    thread.join(200)
    assert done.is_set()
    table.set_target(0)
    with pytest.raises(SystemExit):
        clock.begin(Kind.TRAIN)
    reporter.close()
    table.close()


def test_a_worker_that_nobody_answers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "HOLD_SECONDS", 0.0)
    table = StatusTable(tmp_path / "table", 1)
    reporter = StatusReporter(table.path, 0)
    table.ask_to_halt()
    assert reporter.before_step(0) is None
    reporter.close()
    table.close()
