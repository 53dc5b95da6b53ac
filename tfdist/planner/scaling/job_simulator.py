"""The simulation of a job step by step: workers that vary, failures, spot machines that come and go. No TensorFlow.

Workers that are alike are columns of an array: a block of steps is one draw of numbers, and a sum over workers begins
when the last of them is ready. Failures, returns and saves are events of a queue, between which blocks of steps run.
"""

import dataclasses
import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from tfdist import validation
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.planner.scaling.job_steps import Job, predict, travel_times
from tfdist.planner.scaling.save_interval import Failures

_BLOCK_NUMBERS = 1 << 20  # of random numbers at once
_MOST_UPDATES = 200_000  # that servers apply one by one; the rest takes as long
_NEVER = 1e5  # failures without an end

_Event = TypeVar("_Event")


class EventQueue(Generic[_Event]):
    """A heap of events. Events of one moment come in the order in which they were put.

    Example:
        >>> queue = EventQueue()
        >>> queue.put(2.0, "late"), queue.put(1.0, "soon")
        (None, None)
        >>> queue.pop(), queue.next_time
        ((1.0, 'soon'), 2.0)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Event]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_time(self) -> float:
        """The time of the next event; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def put(self, time: float, event: _Event) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), event))

    def pop(self) -> tuple[float, _Event]:
        time, _, event = heapq.heappop(self._heap)
        return time, event


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The conditions under which a job runs."""

    steps: int  # the number of steps to train
    seed: int = 0  # the seed of all random numbers
    slow: dict[int, float] = field(default_factory=dict)  # number of a worker -> the factor by which it is slower
    failures: Failures | None = None  # the failures of one worker; None if it never fails
    save_seconds: float = 0.0  # the time that a save takes
    interval_seconds: float = math.inf  # the time of training between two saves; infinite: no saves
    least: int | None = None  # the number of workers with which the job continues while others are away; by default all
    away_seconds: float = 0.0  # the time until a failed worker is back, if the others continue without it

    def __post_init__(self) -> None:
        validation.integer("steps", self.steps, minimum=1)
        validation.number("save_seconds", self.save_seconds, minimum=0)
        validation.number("away_seconds", self.away_seconds, minimum=0)
        for worker, factor in self.slow.items():
            validation.number(f"the slowness of worker {worker}", factor, above=0)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The result of a simulated job."""

    seconds: float  # the time until the last step has ended
    step_seconds: np.ndarray  # the time of each step that was kept or repeated, without saves
    failures: int  # the number of failures that ended a start
    repeated: int  # the number of steps that were computed again
    saves: int  # the number of saves
    worker_seconds: float  # the time of all present workers, added up, for the price
    waited: float  # the part of the workers' time in which they wait for the last one
    is_finished: bool  # whether all steps were done; False if failures leave no time


class StepModel:
    """The lengths of a job's steps, given the differences between workers' computing times."""

    def __init__(self, job: Job, slow: dict[int, float]) -> None:
        self.job = job
        found = predict(dataclasses.replace(job, noise=0.0))
        self.compute = found.compute
        self.usual_seconds = max(found.seconds, 1e-9)
        self.factors = np.ones(job.workers)
        for worker, factor in slow.items():
            if worker < job.workers:
                self.factors[worker] = factor
        self._rest = found.seconds - found.compute - found.reduction - found.bubble
        self._bubble = found.bubble
        self._reduction = found.reduction
        is_reducing = job.workers > 1 and job.method in ("data", "powersgd", "sharded")
        overlaps = is_reducing and not job.network.is_local(job.workers)
        self.exchanges = job.exchanges() if overlaps else []
        self.gathered = job.gathering_seconds() if job.method == "sharded" and overlaps else 0.0

    def computing(self, draw: np.random.Generator, steps: int) -> np.ndarray:
        """Draw the factor by which each worker's computing exceeds the mean, ``[steps, workers]``."""
        if not self.job.noise:
            return np.broadcast_to(self.factors, (steps, len(self.factors)))
        noise = 1 + self.job.noise * draw.standard_normal((steps, len(self.factors)))
        return np.maximum(noise, 0.0) * self.factors

    def lengths(self, factors: np.ndarray) -> np.ndarray:
        """Return the seconds of steps, one for each row of factors."""
        if self.job.method == "local-sgd" and self.job.workers > 1:
            return self._meeting_seldom(factors)
        last = factors.max(axis=1)
        if not self.exchanges:
            return (self.compute + self._bubble) * last + self._reduction + self._rest
        ends = [arrived for _, _, arrived in travel_times(self.exchanges, last)]
        return np.maximum(np.max(ends, axis=0), self.compute * last) + self.gathered + self._rest

    def _meeting_seldom(self, factors: np.ndarray) -> np.ndarray:
        """Return the lengths of steps of workers that meet every few steps; each step is its part of a turn."""
        every = self.job.every
        found = np.empty(len(factors))
        for begin in range(0, len(factors), every):
            turn = factors[begin : begin + every]
            found[begin : begin + every] = turn.sum(axis=0).max() / len(turn)
        return self.compute * found + self._reduction + self._rest


def simulate(job: Job, scenario: Scenario) -> Simulated:
    """Simulate a job.

    Example:
        >>> from tfdist.planner.layer_profile import LayerProfile, Profile
        >>> from tfdist.planner.planner_link import Link
        >>> from tfdist.planner.scaling.host_network import HostNetwork
        >>> layer = LayerProfile(name="a", forward_seconds=(1.0,), backward_seconds=(2.0,))
        >>> profile = Profile(model="m", batch=3, batch_sizes=(3,), layers=(layer,), whole_seconds=(3.0,))
        >>> network = HostNetwork(link=Link.parse("1gbit"))
        >>> job = Job(profile=profile, network=network, workers=3)
        >>> round(simulate(job, Scenario(steps=10, slow={1: 1.2, 2: 1.1})).seconds, 3)  # the slowest one's
        12.0
    """
    if scenario.least is not None and job.method in ("pipeline", "parameter-server"):
        raise ConfigError(
            f"a job of the method {job.method!r} has as many workers as it begins with; leave out the least number.",
            name="least",
            received=scenario.least,
        )
    if job.method == "parameter-server" and job.workers > 1:
        if scenario.failures is not None or scenario.interval_seconds < math.inf:
            raise UnsupportedError(
                "workers of parameter servers step by themselves, and are simulated without failures and saves. Leave "
                "out the times between them, or take another method.",
                name="failures",
            )
        return _served(job, scenario)
    return _Run(job, scenario).result()


class _Run:
    def __init__(self, job: Job, scenario: Scenario) -> None:
        self._job, self._scenario = job, scenario
        self._draw = np.random.default_rng(scenario.seed)
        self._models: dict[int, StepModel] = {}
        self._queue = EventQueue[tuple[str, int]]()
        self._now = self._since_save = 0.0
        self._done = self._saved = 0
        self._present = job.workers
        self._least = job.workers if scenario.least is None else max(min(scenario.least, job.workers), 1)
        self._lengths: list[np.ndarray] = []
        self._failures = self._repeated = self._saves = 0
        self._worker_seconds = self._waiting = self._computing = 0.0
        if scenario.failures is not None:
            for worker, time in enumerate(self._times(job.workers)):
                self._queue.put(float(time), ("fails", worker))

    def _times(self, count: int) -> np.ndarray:
        failures = self._scenario.failures
        assert failures is not None
        return failures.scale_seconds * self._draw.weibull(failures.shape, count)

    def result(self) -> Simulated:
        while self._done < self._scenario.steps and self._failures < _NEVER:
            self._train()
        return Simulated(
            seconds=self._now,
            step_seconds=np.concatenate(self._lengths) if self._lengths else np.zeros(0),
            failures=self._failures,
            repeated=self._repeated,
            saves=self._saves,
            worker_seconds=self._worker_seconds,
            waited=self._waiting / max(self._computing + self._waiting, 1e-30),
            is_finished=self._done >= self._scenario.steps,
        )

    def _model(self) -> StepModel:
        if self._present not in self._models:
            job = dataclasses.replace(self._job, workers=self._present)
            if self._present == 1:
                job = dataclasses.replace(job, method="one device")
            self._models[self._present] = StepModel(job, self._scenario.slow)
        return self._models[self._present]

    def _train(self) -> None:
        """Train until the next event, the next save, or the end of a block of steps."""
        model, left = self._model(), self._scenario.steps - self._done
        every = self._job.every if self._job.method == "local-sgd" else 1
        until_save = self._scenario.interval_seconds - self._since_save
        event = self._queue.next_time - self._now
        turns = max(_BLOCK_NUMBERS // self._present // every, 1)
        if min(until_save, event) < math.inf:  # draw no more than is likely to be used
            turns = min(turns, int(max(min(until_save, event), 0.0) / model.usual_seconds / every) + 1)
        count = min(left, turns * every)
        factors = model.computing(self._draw, count)
        lengths = model.lengths(factors)
        ends = np.cumsum(lengths)
        kept = int(np.searchsorted(ends, min(event, ends[-1]), side="right"))
        is_saving = bool(kept and ends[kept - 1] >= until_save)
        if is_saving:
            kept = int(np.searchsorted(ends, until_save, side="left")) + 1
        spent = float(ends[kept - 1]) if kept else 0.0
        self._lengths.append(lengths[:kept])
        self._computing += float(factors[:kept].sum())
        self._waiting += float((factors[:kept].max(axis=1, keepdims=True) - factors[:kept]).sum()) if kept else 0.0
        self._done += kept
        self._pass(spent)
        self._since_save += spent
        if is_saving:
            self._save()
        elif kept < count:
            self._happen()

    def _save(self) -> None:
        if self._now + self._scenario.save_seconds > self._queue.next_time:  # the save is lost
            self._happen()
            return
        self._pass(self._scenario.save_seconds)
        self._saved, self._since_save = self._done, 0.0
        self._saves += 1

    def _pass(self, seconds: float) -> None:
        self._now += seconds
        self._worker_seconds += seconds * self._present

    def _happen(self) -> None:
        """Go on to the next event, and let it happen."""
        time, (kind, worker) = self._queue.pop()
        self._pass(max(time - self._now, 0.0))
        failures = self._scenario.failures
        assert failures is not None
        if kind == "returns":
            self._return(worker)
            self._pass(failures.restart_seconds)
            return
        self._failures += 1
        self._repeated += self._done - self._saved
        self._done, self._since_save = self._saved, 0.0
        if self._present > self._least:
            self._present -= 1
            self._queue.put(self._now + self._scenario.away_seconds, ("returns", worker))
        else:
            self._queue.put(self._now + float(self._times(1)[0]), ("fails", worker))
        begin = self._now + failures.restart_seconds
        while self._queue.next_time < begin:  # fails again before it has begun
            time, (kind, again) = self._queue.pop()
            if kind == "returns":
                self._return(again)
                continue
            self._failures += 1
            begin = time + failures.restart_seconds
            self._queue.put(time + float(self._times(1)[0]), ("fails", again))
            if self._failures >= _NEVER:
                break
        self._pass(begin - self._now)

    def _return(self, worker: int) -> None:
        self._present += 1
        self._queue.put(self._now + float(self._times(1)[0]), ("fails", worker))


def _served(job: Job, scenario: Scenario) -> Simulated:
    """Simulate parameter servers: each worker steps by itself, and servers apply one update after the other."""
    size, link = job.profile.parameter_bytes, job.network.link
    steps = min(scenario.steps, max(_MOST_UPDATES // job.workers, 1))
    draw = np.random.default_rng(scenario.seed)
    model = StepModel(job, scenario.slow)
    found = predict(dataclasses.replace(job, noise=0.0))
    own = 2 * link.send_seconds(size) + found.fixed
    serving = size / job.servers / link.bytes_per_second + job.update_seconds / job.servers
    factors = np.maximum(1 + job.noise * draw.standard_normal((steps + 1, job.workers)), 0.0) * model.factors
    queue, free, ends = EventQueue[tuple[int, int]](), 0.0, list[float]()
    for worker in range(job.workers):
        queue.put(own + found.compute * float(factors[0, worker]), (worker, 0))
    waited = 0.0
    while len(ends) < steps * job.workers:
        now, (worker, turn) = queue.pop()
        begun = max(free, now)
        free, waited = begun + serving, waited + begun - now
        ends.append(free)
        turn = (turn + 1) % (steps + 1)
        queue.put(begun + own + found.compute * float(factors[turn, worker]), (worker, turn))
    rounds = np.diff(np.array([0.0, *ends[job.workers - 1 :: job.workers]]))
    seconds = ends[-1] * scenario.steps / steps
    return Simulated(
        seconds=seconds,
        step_seconds=rounds,
        failures=0,
        repeated=0,
        saves=0,
        worker_seconds=seconds * job.workers,
        waited=waited / (ends[-1] * job.workers),
        is_finished=True,
    )
