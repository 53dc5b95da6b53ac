"""A task outlives its worker, and its result is taken once."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from tests.refusals import refused
from tfdist.errors import ServerLostError, WorkerLostError
from tfdist.training.parameter_servers import scheduler as module
from tfdist.training.parameter_servers.scheduler import Outcome, Scheduler

DEADLINE_SECONDS = 200.0
ANY = range(10_000)


class Gone(Exception):  # noqa: N818 - an event, not an error of ours
    """The error of a call to a worker that has gone."""


class Fake:
    """Workers that are there when the test says so."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.servers_gone = False
        self.refusals = 0
        self.dead: set[int] = set()
        self.reached: list[list[int]] = []

    def meaning(self, worker: int, error: BaseException) -> Literal["gone", "again", "wrong"]:
        if self.servers_gone:
            raise ServerLostError("parameter server 0 has gone")
        if isinstance(error, BlockingIOError):
            return "again"
        return "gone" if isinstance(error, Gone) else "wrong"

    def answers(self, worker: int) -> bool:
        return worker not in self.dead

    def bring_back(self, workers: Sequence[int]) -> bool:
        self.reached.append(list(workers))
        return len(self.reached) > self.refusals

    def wait_until_back(self, worker: int, closed: threading.Event) -> bool:
        while not self.back.wait(0.01):
            if closed.is_set():
                return False
        return True


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def make(fake: Fake) -> Iterator[Callable[..., Scheduler]]:
    made: list[Scheduler] = []

    def maker(count: int, timeout_seconds: float = 60.0, lost_seconds: float = 60.0) -> Scheduler:
        said: list[str] = []
        made.append(
            Scheduler(count, fake, timeout_seconds=timeout_seconds, lost_seconds=lost_seconds, on_change=said.append)
        )
        made[-1].said = said  # type: ignore[attr-defined]
        return made[-1]

    yield maker
    for scheduler in made:
        scheduler.close()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(t.name.startswith("tfdist-worker-") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def outcome_of(scheduler: Scheduler) -> Outcome:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found = scheduler.next_outcome(ANY, wait=False)
        if found is not None:
            return found
        time.sleep(0.005)
    raise AssertionError("no outcome in time")


def test_every_task_is_computed_once(make: Callable[..., Scheduler]) -> None:
    scheduler = make(3)
    numbers = {scheduler.submit(lambda worker, i=i: i * i): i for i in range(20)}
    seen = {outcome.number: outcome.result for outcome in (outcome_of(scheduler) for _ in range(20))}
    assert seen == {number: i * i for number, i in numbers.items()}
    assert scheduler.next_outcome(ANY, wait=False) is None


def lost_once(calls: list[int]) -> Callable[[int], str]:
    """A task that loses the first worker that computes it; `calls` gets who does."""

    def compute(worker: int) -> str:
        calls.append(worker)
        if len(calls) == 1:
            raise Gone("Socket closed")
        return "done"

    return compute


def test_the_end_of_a_task_is_when_its_worker_had_it_and_not_when_it_was_asked_for(
    make: Callable[..., Scheduler],
) -> None:
    scheduler, second = make(1), threading.Event()
    began = time.monotonic()
    number = scheduler.submit(lambda worker: time.monotonic())
    scheduler.submit(lambda worker: second.set())  # begins when the first one has ended
    assert second.wait(DEADLINE_SECONDS)
    asked = time.monotonic()
    outcome = scheduler.next_outcome([number])
    assert outcome is not None
    assert began <= outcome.result <= outcome.ended <= asked


def test_a_worker_that_goes_loses_its_task_to_another(make: Callable[..., Scheduler], fake: Fake) -> None:
    scheduler = make(2)
    calls: list[int] = []
    scheduler.submit(lost_once(calls))
    assert outcome_of(scheduler).result == "done"
    assert calls[0] != calls[1]
    assert scheduler.losses == 1
    assert scheduler.present == 1
    fake.back.set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(scheduler.said) < 2 and time.monotonic() < deadline:  # type: ignore[attr-defined]
        scheduler.next_outcome(ANY, wait=False)
        time.sleep(0.005)
    assert scheduler.present == 2
    assert fake.reached == [[0, 1]]
    assert [s.split(" (")[0] for s in scheduler.said] == [f"worker {calls[0]} has gone", f"worker {calls[0]} is back"]  # type: ignore[attr-defined]


def test_a_silent_worker_is_given_up_and_what_it_says_later_is_not_taken(make: Callable[..., Scheduler]) -> None:
    scheduler = make(2, timeout_seconds=1.0)
    resume, both = threading.Event(), threading.Barrier(2)
    calls: list[int] = []

    def compute(worker: int) -> int:
        calls.append(worker)
        if len(calls) == 1:
            resume.wait(DEADLINE_SECONDS)
        return worker

    for _ in range(2):  # both have run one of the kind, so the limit is the plain one
        scheduler.submit(lambda worker: both.wait(DEADLINE_SECONDS), kind=Fake)
    for _ in range(2):
        outcome_of(scheduler)
    scheduler.submit(compute, kind=Fake)
    first = outcome_of(scheduler)
    assert first.result == calls[1]
    assert calls[0] != calls[1]
    assert scheduler.present == 1
    resume.set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while scheduler.present < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert scheduler.present == 2
    assert scheduler.next_outcome(ANY, wait=False) is None


def test_a_kind_of_task_is_not_kept(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1)
    kinds = [Fake(), Fake()]  # such as the function of a model, which has its variables
    seen = [weakref.ref(kind) for kind in kinds]
    for place, is_known in ((0, False), (0, True), (1, False)):
        scheduler.submit(lambda worker: time.sleep(0.001), kind=kinds[place])
        assert (outcome_of(scheduler).seconds > 0) == is_known
    kinds.clear()
    gc.collect()
    assert [kind() for kind in seen] == [None, None]


def test_a_task_that_nobody_survives_is_an_error(make: Callable[..., Scheduler], fake: Fake) -> None:
    fake.back.set()
    scheduler = make(2)

    def compute(worker: int) -> None:
        raise Gone("Socket closed")

    scheduler.submit(compute)
    error = outcome_of(scheduler).error
    assert isinstance(error, WorkerLostError)
    assert "3 workers" in str(error)


def test_a_worker_that_cannot_be_reached_yet_is_tried_again(make: Callable[..., Scheduler], fake: Fake) -> None:
    fake.back.set()
    fake.refusals = 2
    scheduler = make(1)
    calls: list[int] = []
    scheduler.submit(lost_once(calls))
    assert outcome_of(scheduler).result == "done"
    assert fake.reached == [[0]] * 3


def test_the_cluster_changes_while_nobody_computes(make: Callable[..., Scheduler], fake: Fake) -> None:
    scheduler = make(2)
    both, ends = threading.Barrier(3), threading.Event()

    def goes(worker: int) -> str:
        both.wait(DEADLINE_SECONDS)
        raise Gone("Socket closed")

    def stays(worker: int) -> str:
        both.wait(DEADLINE_SECONDS)
        ends.wait(DEADLINE_SECONDS)
        return "long"

    going, staying = scheduler.submit(goes), scheduler.submit(stays)
    both.wait(DEADLINE_SECONDS)
    scheduler.cancel(going)
    fake.back.set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not scheduler._calling() and time.monotonic() < deadline:
        time.sleep(0.005)
    short = scheduler.submit(lambda worker: "short")
    assert scheduler.next_outcome(ANY, wait=False) is None
    assert fake.reached == []  # a worker computes
    ends.set()
    assert {outcome_of(scheduler).number for _ in range(2)} == {staying, short}
    assert fake.reached == [[0, 1]]


def test_a_call_that_never_returns_from_a_dead_worker_holds_nobody(
    make: Callable[..., Scheduler], fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_AFTER_SECONDS", 0.05)
    scheduler = make(2)
    never = threading.Event()
    calls: list[int] = []

    def compute(worker: int) -> str:
        calls.append(worker)
        if len(calls) == 1:
            fake.dead.add(worker)
            never.wait(DEADLINE_SECONDS)
        return "done"

    scheduler.submit(compute)
    assert outcome_of(scheduler).result == "done"
    assert scheduler.losses == 1
    fake.dead.clear()
    fake.back.set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while scheduler.present < 2 and time.monotonic() < deadline:
        scheduler.next_outcome(ANY, wait=False)
        time.sleep(0.005)
    assert scheduler.present == 2
    never.set()
    scheduler.submit(lambda worker: "more")
    assert outcome_of(scheduler).result == "more"
    assert scheduler.next_outcome(ANY, wait=False) is None


def test_who_is_asked_again_has_not_gone(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1)
    calls: list[int] = []

    def compute(worker: int) -> str:
        calls.append(worker)
        if len(calls) < 6:
            raise BlockingIOError("not now")
        return "done"

    scheduler.submit(compute)
    assert outcome_of(scheduler).result == "done"
    assert scheduler.losses == 0


def test_a_task_that_a_worker_can_never_be_asked_for_goes_to_others(
    make: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 1e-3)

    def compute(worker: int) -> int:
        if worker == 0:
            raise BlockingIOError("what was sent to it is broken")
        return worker

    scheduler = make(2)
    scheduler.submit(compute, among={0})
    assert outcome_of(scheduler).result == 1
    alone = make(1)
    alone.submit(compute)
    assert isinstance(outcome_of(alone).error, WorkerLostError)


def test_a_wrong_computation_is_the_chiefs_to_raise(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1)

    def compute(worker: int) -> None:
        raise ZeroDivisionError("by the user")

    scheduler.submit(compute)
    assert isinstance(outcome_of(scheduler).error, ZeroDivisionError)
    assert scheduler.present == 1


def test_a_server_that_has_gone_is_told_as_that(make: Callable[..., Scheduler], fake: Fake) -> None:
    fake.servers_gone = True
    scheduler = make(1)

    def compute(worker: int) -> None:
        raise Gone("Socket closed")

    scheduler.submit(compute)
    assert isinstance(outcome_of(scheduler).error, ServerLostError)


def test_without_any_worker_it_ends(make: Callable[..., Scheduler], fake: Fake) -> None:
    scheduler = make(1, lost_seconds=0.2)

    def compute(worker: int) -> None:
        raise Gone("Socket closed")

    scheduler.submit(compute)
    with refused(WorkerLostError, workers=[0]):
        outcome_of(scheduler)


def test_outcomes_are_kept_for_who_asks_for_them(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1)
    first, second = scheduler.submit(lambda worker: "first"), scheduler.submit(lambda worker: "second")
    found = scheduler.next_outcome([second])
    assert found is not None
    assert found.result == "second"
    assert scheduler.next_outcome([second], wait=False) is None
    found = scheduler.next_outcome([first])
    assert found is not None
    assert found.result == "first"


def test_what_is_cancelled_is_not_heard_of(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1)
    resume = threading.Event()
    begun = threading.Event()

    def slow(worker: int) -> str:
        begun.set()
        resume.wait(DEADLINE_SECONDS)
        return "slow"

    running = scheduler.submit(slow)
    assert begun.wait(DEADLINE_SECONDS)
    waiting = scheduler.submit(lambda worker: "waiting")
    scheduler.cancel(running)
    scheduler.cancel(waiting)
    resume.set()
    scheduler.submit(lambda worker: "wanted")
    assert outcome_of(scheduler).result == "wanted"
    assert scheduler.next_outcome(ANY, wait=False) is None
    assert module._LOSSES_OF_A_TASK == 3


def test_ready_counts_what_waits(make: Callable[..., Scheduler]) -> None:
    scheduler = make(2)
    resume = threading.Event()
    tasks: list[Any] = [scheduler.submit(lambda worker: resume.wait(DEADLINE_SECONDS)) for _ in range(3)]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while scheduler.ready and time.monotonic() < deadline:
        time.sleep(0.005)
    assert scheduler.ready == 0
    resume.set()
    for _ in tasks:
        outcome_of(scheduler)


def test_late_are_those_without_a_result_the_longest_first(make: Callable[..., Scheduler], fake: Fake) -> None:
    scheduler = make(3)
    resume, begun = threading.Event(), threading.Semaphore(0)

    def slow(worker: int) -> int:
        begun.release()
        resume.wait(DEADLINE_SECONDS)
        return worker

    def go(worker: int) -> int:
        lost.append(worker)
        raise Gone

    lost: list[int] = []
    scheduler.submit(slow)
    assert begun.acquire(timeout=DEADLINE_SECONDS)
    (first,) = scheduler.late()
    scheduler.submit(slow)
    assert begun.acquire(timeout=DEADLINE_SECONDS)
    (second,) = set(scheduler.late()) - {first}
    assert scheduler.late() == [first, second]
    number = scheduler.submit(go)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(scheduler.late()) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert scheduler.late() == [*lost, first, second]
    scheduler.cancel(number)
    resume.set()
