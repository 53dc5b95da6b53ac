"""Groups of workers: staleness is bounded in each, none waits for another, and the dead hold up no worker."""

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.training.parameter_servers import worker_groups as module
from tfdist.training.parameter_servers.staleness import Bound
from tfdist.training.parameter_servers.worker_groups import GroupClock, Ticket, WorkerGroups, grouped_by_speed, may_take

# Of a gradient under way: the updates of its group since it was asked for, and who has it: the worker that computes it,
# the queue (of a worker that died), or the chief.
QUEUED, FINISHED = -1, -2
Gradient = tuple[int, int]
# the gradients of each group, oldest first, and the workers that are dead
State = tuple[tuple[tuple[Gradient, ...], ...], frozenset[int]]
VERSION = 10


class World:
    """A chief and workers in one state, with a real clock: every transition is one of the chief or of the scheduler."""

    def __init__(self, sizes: tuple[int, ...], bound: int, state: State) -> None:
        edges = [0, *itertools.accumulate(sizes)]
        self.groups = {str(place): tuple(range(a, b)) for place, (a, b) in enumerate(itertools.pairwise(edges))}
        self.clock = GroupClock(self.groups, bound)
        self.held: dict[Ticket, int] = {}
        gradients, dead = state
        self.dead = set(dead)
        for name, of_group in zip(self.groups, gradients, strict=True):
            own = self.clock._bounds[name]
            for lag, holder in of_group:
                own.version = VERSION - lag
                self.held[self.clock.start(name)] = holder
            own.version = VERSION

    @property
    def state(self) -> State:
        found = []
        for name in self.groups:
            own = self.clock._bounds[name]
            under_way = {number: own.version - started for number, started in own._under_way.items()}
            mine = {ticket.number: holder for ticket, holder in self.held.items() if ticket.group == name}
            found.append(tuple((lag, mine[number]) for number, lag in under_way.items()))
        return tuple(found), frozenset(self.dead)

    def worker_steps(self) -> Iterator[tuple[str, object]]:
        """Yield the steps that need no new batch, and end those that have begun."""
        busy = set(self.held.values())
        present = set(itertools.chain(*self.groups.values())) - self.dead
        for ticket, holder in self.held.items():
            if holder >= 0:
                yield "finish", ticket
            elif holder == FINISHED and self.clock.may_apply(ticket):
                yield "apply", ticket
            elif holder == QUEUED:
                for worker in present - busy:
                    if may_take(self.groups[ticket.group], worker, present):
                        yield "take", (ticket, worker)

    def other_steps(self) -> Iterator[tuple[str, object]]:
        """Batches, deaths, and returns."""
        busy = set(self.held.values())
        everybody = set(itertools.chain(*self.groups.values()))
        for name, workers in self.groups.items():
            queued = sum(holder == QUEUED and ticket.group == name for ticket, holder in self.held.items())
            idle = [worker for worker in workers if worker not in busy | self.dead]
            if self.clock.may_start(name) and len(idle) > queued:
                for worker in idle:
                    yield "give", (name, worker)
        for worker in everybody - self.dead:
            if len(self.dead) + 1 < len(everybody):
                yield "die", worker
        for worker in self.dead:
            yield "return", worker

    def do(self, step: tuple[str, object]) -> None:
        what, which = step
        match what, which:
            case "finish", Ticket():
                self.held[which] = FINISHED
            case "apply", Ticket():
                self.clock.apply(which)
                del self.held[which]
            case "take", (Ticket() as ticket, int(worker)):
                self.held[ticket] = worker
            case "give", (str(name), int(worker)):
                self.held[self.clock.start(name)] = worker
            case "die", int(worker):
                self.dead.add(worker)
                self.held = {ticket: QUEUED if holder == worker else holder for ticket, holder in self.held.items()}
            case "return", int(worker):
                self.dead.discard(worker)


def canonical(state: State, sizes: tuple[int, ...]) -> State:
    """The same state with the workers of each group in one order: they are alike."""
    gradients, dead = state
    order, edges = {}, [0, *itertools.accumulate(sizes)]
    places = {holder: (g, p) for g, of in enumerate(gradients) for p, (_, holder) in enumerate(of) if holder >= 0}
    for begin, end in itertools.pairwise(edges):
        alike = sorted(range(begin, end), key=lambda worker: (worker in dead, places.get(worker, (len(sizes), 0))))
        order |= {worker: begin + place for place, worker in enumerate(alike)}
    held = tuple(tuple((lag, order.get(holder, holder)) for lag, holder in of) for of in gradients)
    return held, frozenset(order[worker] for worker in dead)


@pytest.mark.parametrize(
    ("sizes", "bounds"),
    [((1,), range(4)), ((2,), range(4)), ((3,), range(4)), ((4,), range(4)), ((1, 1), (1,)), ((2, 1), (1,))],
)
def test_all_interleavings_keep_the_bound_and_go_on(sizes: tuple[int, ...], bounds: Sequence[int]) -> None:
    for bound in bounds:
        start: State = (((),) * len(sizes), frozenset())
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            world = World(sizes, bound, state)
            assert all(lag <= bound for of_group in state[0] for lag, _ in of_group), (bound, state)
            ending, other = list(world.worker_steps()), list(world.other_steps())
            if any(state[0]):
                assert ending, f"nothing goes on with staleness {bound}: {state}"
            else:
                assert any(what == "give" for what, _ in other), f"no batch can be given: {state}"
            for step in [*ending, *other]:
                after = World(sizes, bound, state)
                after.do(step)
                found = canonical(after.state, sizes)
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        assert len(seen) >= 3


def test_one_group_is_bounded_staleness_as_it_was() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        clock, bound = GroupClock({"all": range(3)}, 2), Bound(2)
        under_way: list[tuple[Ticket, int]] = []
        for _ in range(60):
            assert clock.may_start("all") == bound.may_start()
            may = [clock.may_apply(one) for one, _ in under_way]
            assert may == [bound.may_apply(other) for _, other in under_way]
            if under_way and any(may) and (draw.random() < 0.6 or not bound.may_start()):
                one, other = under_way.pop(draw.choice([place for place, allowed in enumerate(may) if allowed]))
                assert clock.apply(one) == bound.apply(other)
            else:
                under_way.append((clock.start("all"), bound.start()))


def test_groups_follow_speed_once_and_noise_moves_no_worker() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        groups = WorkerGroups(4, "auto", bound=2)
        changes = 0
        for _ in range(100):
            for worker, seconds in enumerate((0.1, 0.4, 0.11, 0.5)):
                changes += groups.note(worker, seconds * draw.uniform(0.95, 1.05))
        assert (list(groups.now.values()), changes) == ([(0, 2), (1, 3)], 1)


def test_a_worker_that_becomes_slow_leaves_its_group_and_comes_back() -> None:
    groups = WorkerGroups(3, "auto", bound=1)
    seen = []
    for slow in (1.0, 3.0, 1.0):
        for _ in range(2 * module.EVERY):
            for worker, factor in enumerate((1.0, 1.0, slow)):
                groups.note(worker, 0.1 * factor)
        seen.append(list(groups.now.values()))
    assert seen == [[(0, 1, 2)], [(0, 1), (2,)], [(0, 1, 2)]]


def test_first_batches_are_not_measured_and_a_lost_worker_holds_no_decision_up() -> None:
    groups = WorkerGroups(3, "auto", bound=1)
    assert not any(groups.note(worker, 0.0) for _ in range(100) for worker in range(3))
    changed = [groups.note(worker, seconds) for _ in range(50) for worker, seconds in ((0, 0.1), (1, 0.5))]
    assert sum(changed) == 1
    assert list(groups.now.values()) == [(0, 2), (1,)]
    assert grouped_by_speed([0.3]) == [(0,)]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("fast", ConfigTypeError),
        (2, ConfigTypeError),
        (["worker-0", "worker-1"], ConfigTypeError),
        ({"fast": "worker-0"}, ConfigTypeError),
        ({}, ConfigError),
        ({"fast": ["worker-0"]}, ConfigError),
        ({"fast": ["worker-0", "worker-1"], "slow": []}, ConfigError),
        ({"fast": ["worker-0", "worker-1"], "slow": ["worker-1"]}, ConfigError),
        ({"fast": ["worker-0", "worker-2"]}, ConfigError),
        ({"fast": [0, 1]}, ConfigError),
        ({1: ["worker-0", "worker-1"]}, ConfigTypeError),
    ],
)
def test_groups_name_each_worker_once(wrong: object, kind: type[ConfigError]) -> None:
    with refused(kind):
        WorkerGroups(2, wrong, bound=1)


@pytest.mark.parametrize("bound", [None, 0])
def test_groups_need_a_bound(bound: int | None) -> None:
    with refused(ConfigError, name="groups", received="auto"):
        WorkerGroups(2, "auto", bound=bound)


def test_groups_have_the_names_that_were_given() -> None:
    groups = WorkerGroups(3, {"fast": ["worker-2"], "slow": ("worker-0", "worker-1")}, bound=1)
    assert groups.now == {"fast": (2,), "slow": (0, 1)}
    assert not any(groups.note(worker, 0.1 + worker) for _ in range(100) for worker in range(3)), "they stay"
