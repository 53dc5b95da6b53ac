"""The workers that compute a chief's tasks: one thread each, deadlines, and tasks that outlive their workers.

A task is computed by one worker at a time and its result is taken once. A worker that disappears, or does not answer in
time, loses its task to another one, and a late answer is ignored. It gets new tasks when it is back.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

from tfdist.errors import WorkerLostError
from tfdist.training.parameter_servers.worker_groups import may_take

# A task that so many workers did not survive is given up, because it may end the others too.
_LOSSES_OF_A_TASK = 3
# A worker compiles a function when it runs it first.
_FIRST_TAKES = 3
_LOOK_SECONDS = 0.25
_LOOK_AFTER_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
# After so many attempts any worker may take a task: a call to a worker that died may fail for that worker for good.
_AGAIN_AMONG = 20
# So many attempts at a task count as one lost worker.
_AGAIN_IN_ALL = 200


class Transport(Protocol):
    """The chief's connection to its workers."""

    def meaning(self, worker: int, error: BaseException) -> Literal["gone", "again", "wrong"]:
        """Classify an error: the worker is gone, it must be asked again, or the task is wrong.

        May raise a better error instead.
        """

    def answers(self, worker: int) -> bool:
        """True if the worker's process exists, even if it is stopped."""

    def wait_until_back(self, worker: int, closed: threading.Event) -> bool:
        """Wait until a worker that was gone answers again; False if the scheduler was closed meanwhile."""

    def bring_back(self, workers: Sequence[int]) -> bool:
        """Reach exactly these workers from now on, some of which were restarted; True on success.

        Called by the thread that takes outcomes, which does nothing else meanwhile, while no worker computes but those
        that were given up: TensorFlow may end the process if its cluster changes under a call.
        """


class _State(Enum):
    READY = "ready"
    BUSY = "busy"
    SILENT = "silent"  # busy, and given up
    GONE = "gone"
    CALLING = "calling"  # started anew, and not yet reached


@dataclass
class _Task:
    number: int
    compute: Callable[[int], Any]
    kind: object
    among: Collection[int] | None  # the workers that it is for; None: any
    losses: list[str] = field(default_factory=list)
    again: int = 0  # how often a worker could not be asked at all


@dataclass
class _Worker:
    index: int
    state: _State = _State.READY
    task: _Task | None = None
    since: float = 0.0
    looked: float = 0.0
    replaced: bool = False
    known: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)  # it must not keep a model that is gone


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result or the error of a task.

    Attributes:
        ended: the time of its end on the monotonic clock, in seconds.
        seconds: the time that it took; 0 if it has no kind, or its worker had to compile it first.
    """

    number: int
    result: Any = None
    error: BaseException | None = None
    ended: float = 0.0
    worker: int = -1
    seconds: float = 0.0


class Scheduler:
    """The workers of one chief.

    Example:
        >>> scheduler = Scheduler(2, transport, timeout_seconds=60.0, lost_seconds=600.0)      # doctest: +SKIP
        >>> number = scheduler.submit(lambda worker: worker)                              # doctest: +SKIP
        >>> scheduler.next_outcome([number]).result                                               # doctest: +SKIP
        0
    """

    def __init__(
        self,
        count: int,
        transport: Transport,
        *,
        timeout_seconds: float,
        lost_seconds: float,
        on_change: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.lost_seconds = lost_seconds
        self._transport = transport
        self._on_change = on_change
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._numbers = 0
        self._queue: deque[_Task] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._cancelled: set[int] = set()
        self._alone_since: float | None = None
        self._said: deque[str] = deque()
        #: the number of times that a worker was lost or given up
        self.losses = 0
        self._workers = [_Worker(index) for index in range(count)]
        for worker in self._workers:
            self._start(worker)

    @property
    def ready(self) -> int:
        """The number of idle workers, less the tasks that wait."""
        return self.ready_among(range(len(self._workers)))

    def ready_among(self, workers: Collection[int]) -> int:
        """Return the number of idle ones of these workers, less the tasks that they may take."""
        with self._changed:
            idle = sum(self._workers[index].state is _State.READY for index in workers)
            present = self._present()
            waiting = sum(any(may_take(task.among, index, present) for index in workers) for task in self._queue)
            return max(0, idle - waiting)

    @property
    def present(self) -> int:
        """The number of workers that compute, or could."""
        with self._changed:
            return len(self._present())

    def submit(
        self, compute: Callable[[int], Any], *, kind: object = None, among: Collection[int] | None = None
    ) -> int:
        """Give a task to the next ready worker, one of ``among`` while any of these is present; return its number."""
        with self._changed:
            self._numbers += 1
            self._queue.append(_Task(self._numbers, compute, kind, among))
            self._changed.notify_all()
            return self._numbers

    def cancel(self, number: int) -> None:
        """Ignore the result of this task; a worker that computes it is not interrupted."""
        with self._changed:
            before = len(self._queue)
            self._queue = deque(task for task in self._queue if task.number != number)
            under_way = any(worker.task is not None and worker.task.number == number for worker in self._workers)
            if len(self._queue) == before and under_way:
                self._cancelled.add(number)
            self._outcomes = deque(outcome for outcome in self._outcomes if outcome.number != number)

    def late(self) -> list[int]:
        """Return the workers that have no result yet, the one that has kept the chief waiting for longest first."""
        with self._changed:
            missing = [worker for worker in self._workers if worker.state is not _State.READY]
            gone = (_State.GONE, _State.CALLING)
            return [worker.index for worker in sorted(missing, key=lambda one: (one.state not in gone, one.since))]

    def next_outcome(self, among: Collection[int], *, wait: bool = True) -> Outcome | None:
        """Return the outcome of one of these tasks, in the order in which they end; None if none is known yet."""
        while True:
            self._replace_the_dead(time.monotonic())
            with self._changed:
                self._give_up_the_silent(time.monotonic())
                self._bring_back()
                outcome = next((one for one in self._outcomes if one.number in among), None)
                if outcome is not None:
                    self._outcomes.remove(outcome)
                self._require_somebody(time.monotonic())
                said, self._said = self._said, deque()
                if outcome is None and wait and not said:
                    self._changed.wait(_LOOK_SECONDS)
            for sentence in said:
                self._on_change(sentence)
            if outcome is not None or not wait:
                return outcome

    def close(self) -> None:
        """Give workers no more tasks, and do not wait for those that compute."""
        with self._changed:
            self._closed.set()
            self._queue.clear()
            self._changed.notify_all()

    def _start(self, worker: _Worker) -> None:
        name = f"tfdist-worker-{worker.index}"
        threading.Thread(target=self._work, args=(worker,), name=name, daemon=True).start()

    def _work(self, worker: _Worker) -> None:
        if worker.state is _State.GONE and not self._return(worker):
            return
        self._welcome(worker)
        while True:
            with self._changed:
                while (task := self._task_for(worker)) is None and not self._closed.is_set():
                    self._changed.wait()
                if self._closed.is_set() or task is None:
                    return
                self._queue.remove(task)
                worker.state, worker.task, worker.since = _State.BUSY, task, time.monotonic()
            result, error = None, None
            try:
                result = task.compute(worker.index)
            except BaseException as raised:  # noqa: BLE001 - it is the chief's, which raises it
                error = raised
            meaning = "wrong"
            if error is not None:
                try:
                    meaning = self._transport.meaning(worker.index, error)
                except BaseException as meant:  # noqa: BLE001 - likewise
                    error = meant
            with self._changed:
                if worker.replaced:
                    return
                self._end(worker, task, result, error, meaning)
            del result, error
            if meaning == "gone" and not self._return(worker):
                return
            if meaning == "again":
                self._closed.wait(_PAUSE_SECONDS)
            self._welcome(worker)

    def _present(self) -> set[int]:
        return {worker.index for worker in self._workers if worker.state in (_State.READY, _State.BUSY)}

    def _task_for(self, worker: _Worker) -> _Task | None:
        if self._calling():
            return None
        present = self._present()
        return next((task for task in self._queue if may_take(task.among, worker.index, present)), None)

    def _welcome(self, worker: _Worker) -> None:
        with self._changed:
            if worker.state is not _State.READY:
                self._say(f"worker {worker.index} is back")
            worker.state = _State.READY
            self._alone_since = None
            self._changed.notify_all()

    def _return(self, worker: _Worker) -> bool:
        """Wait until a lost worker is reached again; return False if the scheduler is closed."""
        while self._transport.wait_until_back(worker.index, self._closed):
            with self._changed:
                worker.state = _State.CALLING
                self._changed.notify_all()
                while worker.state is _State.CALLING and not self._closed.is_set():
                    self._changed.wait()
                if worker.state is _State.BUSY:  # reached
                    return True
        return False

    def _calling(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.state is _State.CALLING]

    def _bring_back(self) -> None:
        calling = self._calling()
        if not calling or any(worker.state is _State.BUSY for worker in self._workers):
            return
        there = [worker for worker in self._workers if worker.state is _State.READY]
        reached = self._transport.bring_back(sorted(worker.index for worker in there + calling))
        for worker in calling:
            worker.state = _State.BUSY if reached else _State.GONE
        self._changed.notify_all()

    def _end(self, worker: _Worker, task: _Task, result: Any, error: BaseException | None, meaning: str) -> None:
        mine = worker.task is task  # else the task was given to another worker
        ended = time.monotonic()
        worker.task = None
        if mine and task.number in self._cancelled:
            self._cancelled.discard(task.number)
            mine = False
        if error is not None and meaning == "again":
            if mine:
                self._ask_again(task, f"worker {worker.index}: {_first_line(error)}")
            if worker.state is _State.BUSY:
                worker.state = _State.READY
        elif error is not None and meaning == "gone":
            worker.state = _State.GONE
            worker.known.clear()
            self.losses += 1
            self._say(f"worker {worker.index} has gone ({_first_line(error)})")
            if mine:
                self._put_back(task, f"worker {worker.index}: {_first_line(error)}")
        else:
            is_known = task.kind is not None and task.kind in worker.known
            seconds = ended - worker.since if is_known else 0.0
            if task.kind is not None:
                worker.known.add(task.kind)
            if mine:
                self._outcomes.append(Outcome(task.number, result, error, ended, worker.index, seconds))
            if worker.state is _State.BUSY:
                worker.state = _State.READY
        self._changed.notify_all()

    def _replace_the_dead(self, now: float) -> None:
        """Start a new thread for each worker whose process has ended: TensorFlow may block the old one."""
        with self._changed:
            waited_for = [
                worker
                for worker in self._workers
                if worker.state in (_State.BUSY, _State.SILENT)
                and now - max(worker.since, worker.looked) > _LOOK_AFTER_SECONDS
            ]
        for worker in waited_for:
            worker.looked = now
            if self._transport.answers(worker.index):
                continue
            with self._changed:
                if worker.state not in (_State.BUSY, _State.SILENT) or self._closed.is_set():
                    continue
                worker.replaced = True
                task, worker.task = worker.task, None
                if worker.state is _State.BUSY:
                    self.losses += 1
                    self._say(f"worker {worker.index} has gone (no process listens at its address)")
                if task is not None:
                    self._put_back(task, f"worker {worker.index}: its process has ended")
                self._workers[worker.index] = _Worker(worker.index, state=_State.GONE)
                self._changed.notify_all()  # others may take what waits for its group
                self._start(self._workers[worker.index])

    def _give_up_the_silent(self, now: float) -> None:
        for worker in self._workers:
            if worker.state is not _State.BUSY or worker.task is None:
                continue
            limit = self.timeout_seconds * (1 if worker.task.kind in worker.known else _FIRST_TAKES)
            if now - worker.since > limit:
                task, worker.task, worker.state = worker.task, None, _State.SILENT
                self.losses += 1
                self._say(f"worker {worker.index} has not answered for {limit:g} s; another one gets its task")
                self._changed.notify_all()
                self._put_back(task, f"worker {worker.index}: no answer for {limit:g} s")

    def _ask_again(self, task: _Task, why: str) -> None:
        task.again += 1
        if task.again >= _AGAIN_AMONG:
            task.among = None
        if task.again % _AGAIN_IN_ALL:
            self._queue.appendleft(task)
        else:
            self._put_back(task, why)

    def _put_back(self, task: _Task, why: str) -> None:
        if task.number in self._cancelled:
            self._cancelled.discard(task.number)
            return
        task.losses.append(why)
        if len(task.losses) < _LOSSES_OF_A_TASK:
            self._queue.appendleft(task)
            self._changed.notify_all()
        else:
            words = "; ".join(task.losses)
            error = WorkerLostError(
                f"{len(task.losses)} workers were lost over the same step ({words}). Look at what the workers printed: "
                "memory that runs out ends one after the other; a longer worker_timeout_seconds lets a slow one finish."
            )
            self._outcomes.append(Outcome(task.number, error=error))

    def _require_somebody(self, now: float) -> None:
        if any(worker.state in (_State.READY, _State.BUSY) for worker in self._workers):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if now - self._alone_since > self.lost_seconds:
            raise WorkerLostError(
                f"no worker of {len(self._workers)} has answered for {self.lost_seconds:g} s. Start them again at "
                "their addresses (tfdist run does), or the whole job, which continues from its last backup.",
                workers=range(len(self._workers)),
            )

    def _say(self, sentence: str) -> None:
        self._said.append(sentence)


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:120]
