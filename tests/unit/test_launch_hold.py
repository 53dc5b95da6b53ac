"""How workers are stopped before the same step: every interleaving of up to three, then real pages."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tfdist.launch import progress
from tfdist.launch.hold import Position, Standing, target_of
from tfdist.launch.progress import Page, Reporter

TICKS = 3
NOWHERE = Position(tick=-1, standing=Standing.BEHIND)


@dataclass(frozen=True)
class Model:
    """A worker: what it has written, and where its program is."""

    position: Position = NOWHERE
    at: str = "look"  # look, start, run, hold, stopped, gone

    @property
    def next_tick(self) -> int:
        return self.position.tick + (self.position.standing is Standing.BEHIND)


@dataclass(frozen=True)
class World:
    """The workers and the agent; every step of each is one access to memory."""

    workers: tuple[Model, ...]
    asked: bool = False
    target: int | None = None
    read: tuple[Position | None, ...] = ()  # what the agent has read in this round; None of a worker that is gone


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
            yield Model(position=Position(tick=tick, standing=Standing.HELD), at="hold")
        else:
            yield replace(worker, at="start" if tick <= world.target else "stopped")
    elif worker.at == "hold" and world.target is not None:
        yield replace(worker, at="start" if worker.position.tick <= world.target else "stopped")
    elif worker.at == "start":
        tick = worker.position.tick if worker.position.standing is Standing.HELD else tick
        yield Model(position=Position(tick=tick, standing=Standing.RUNNING), at="run")
    elif worker.at == "run" and all(other.position.started >= worker.position.tick for other in world.workers):
        yield Model(position=replace(worker.position, standing=Standing.BEHIND))


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
    def at(tick: int, standing: Standing) -> Position:
        return Position(tick=tick, standing=standing)

    assert target_of([]) is None
    assert target_of([at(4, Standing.BEHIND), at(5, Standing.HELD)]) is None
    assert target_of([at(0, Standing.HELD), at(0, Standing.HELD)]) == -1
    assert target_of([at(5, Standing.RUNNING), at(6, Standing.HELD), at(5, Standing.HELD)]) == 5


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(5))
def test_real_pages(seed: int, tmp_path: Path) -> None:
    count, last = 3, {}
    page = Page(tmp_path / "page", count)
    barrier = threading.Barrier(count)

    def work(worker: int) -> None:
        reporter, tick = Reporter(page.path, worker), 0
        while not reporter.begins(tick):
            barrier.wait(30)
            reporter.ends(tick)
            tick += 1
        last[worker] = tick
        reporter.close()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(count)]
    for thread in threads:
        thread.start()
    wish = random.Random(seed).randrange(1, 300)
    while page.read(0).position.tick < wish:
        pass
    page.ask_to_halt()
    threading.Event().wait(progress.SETTLE_SECONDS)
    while (target := target_of(page.read(worker).position for worker in range(count))) is None:
        pass
    page.set_target(target)
    for thread in threads:
        thread.join(30)
    page.close()
    assert last == dict.fromkeys(range(count), target + 1)


@pytest.mark.timeout(60)
def test_a_request_that_is_taken_back(tmp_path: Path) -> None:
    page = Page(tmp_path / "page", 1)
    reporter = Reporter(page.path, 0)
    said: list[bool] = []

    def work() -> None:
        said.append(reporter.begins(0))
        reporter.ends(0)

    page.ask_to_halt()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while page.read(0).position.standing is not Standing.HELD:
        pass
    page.take_back()
    page.ask_to_halt()  # at once: that it holds for the first request says nothing about the second
    if page.read(0).position.standing is Standing.BEHIND:
        assert page.read(0).position.tick <= 0
    thread.join(30)
    assert said == [False]
    page.set_target(0)
    assert reporter.begins(1)
    reporter.close()
    page.close()


def test_a_worker_that_nobody_answers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HOLD_SECONDS", 0.0)
    page = Page(tmp_path / "page", 1)
    reporter = Reporter(page.path, 0)
    page.ask_to_halt()
    assert not reporter.begins(0)
    reporter.close()
    page.close()
