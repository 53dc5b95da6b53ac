"""The report of scaling: for each number of workers the fastest method, its time, price and command, and the best row.

Loads no TensorFlow.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.layer_profile import Profile
from tfdist.planner.meeting_interval import smallest_interval
from tfdist.planner.scaling.job_cost import Cost, Price, cost, more_examples
from tfdist.planner.scaling.job_steps import (
    EXACT,
    METHODS,
    MOST_IN_PIPELINES,
    TERMS,
    Job,
    StepTime,
    Surroundings,
    meetings,
    predict,
)
from tfdist.planner.scaling.plan_record import UNKNOWN

_MOST_WORKERS = 1 << 20
_MILLION = 1e6
_MOST_STEPS = 1000  # between two means of the weights
#: below it a row says that most of its devices' time is lost
_LEAST_EFFICIENCY = 0.5


def numbers_of(text: str) -> tuple[int, ...]:
    """Parse numbers of workers: 8, or 1,2,6, or 1..1024, which doubles.

    Example:
        >>> numbers_of("1..12"), numbers_of("2,3")
        ((1, 2, 4, 8, 12), (2, 3))
    """
    found = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    parts = found.groups() if found else text.split(",")
    hint = "Write 8, or 1,2,6, or 1..1024, which doubles."
    numbers = [validation.parse_integer("--workers", one, minimum=1, maximum=_MOST_WORKERS, hint=hint) for one in parts]
    if not found:
        return tuple(sorted(set(numbers)))
    low, high = numbers
    if low > high:
        raise ConfigError(f"--workers is {text!r}, which falls. {hint}", name="--workers", received=text)
    doubled = [low << place for place in range((high // low).bit_length())]
    return tuple(sorted({*doubled, high}))


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a prediction of scaling."""

    profile: Profile  # the profile of the model
    around: Surroundings  # the network and the devices
    workers: tuple[int, ...] = (1,)  # the numbers of workers to try
    prices: tuple[Price, ...] = (Price(),)  # the prices of capacity, on demand and spot
    # the methods to choose from; by default those that train to the weights of one device
    methods: tuple[str, ...] = EXACT
    grows: bool = False  # whether each worker keeps the batch of one device; else the global batch stays the same
    examples: int | None = None  # the number of examples of an epoch; None: times are those of a million examples
    epochs: float = 1.0  # the number of epochs to train
    # the noise scale of gradients, in examples; it decides how many more examples a larger batch needs
    noise_scale: float | None = None
    deadline_seconds: float | None = None  # the time that a training may take
    budget: float | None = None  # the price that a training may have
    save_seconds: float = 1.0  # the time that a save takes
    # the factors that turn a prediction into the ends of its interval
    factors: tuple[float, float] = (1 - UNKNOWN, 1 + UNKNOWN)
    script: tuple[str, ...] = ("train.py",)  # the words of the command

    def __post_init__(self) -> None:
        for method in self.methods:
            validation.one_of("method", method, METHODS)
        if self.examples is not None:
            validation.integer("examples", self.examples, minimum=1)
        validation.number("epochs", self.epochs, above=0)
        if self.noise_scale is not None:
            validation.number("noise_scale", self.noise_scale, above=0)
        if self.budget is not None:
            validation.number("budget", self.budget, above=0)
        if self.deadline_seconds is not None:
            validation.number("deadline_seconds", self.deadline_seconds, above=0)
        validation.number("save_seconds", self.save_seconds, above=0)

    def batch(self, workers: int) -> int:
        """Return the number of examples in a step over this many workers."""
        return self.profile.batch * (workers if self.grows else 1)

    @property
    def needed(self) -> float:
        """The number of examples of a training with the batch of the profile."""
        return _MILLION if self.examples is None else self.examples * self.epochs

    @cached_property
    def alone(self) -> StepTime:
        """The step of one device."""
        return predict(self.around.job(self.profile, "one device", 1, self.batch(1)))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: a job, and its predicted time and cost.

    Attributes:
        job: the job, with its method and number of workers.
        step: the step of the job.
        low, high: the ends of the interval of a step's seconds.
        efficiency: the examples per second, relative to as many single devices.
        epoch_seconds: the seconds of an epoch without failures; of a million examples if the size of an epoch is not
            known.
        cost: the cost of the whole training.
        price: the price of capacity.
        fits: whether each device has enough memory.
        meets: whether the deadline and the budget are met.
        command: the command that runs the job.
    """

    job: Job
    step: StepTime
    low: float
    high: float
    efficiency: float
    epoch_seconds: float
    cost: Cost
    price: Price
    fits: bool
    meets: bool
    command: str

    @property
    def is_spot(self) -> bool:
        """Whether the capacity is spot capacity."""
        return self.price.factor != 1

    @property
    def name(self) -> str:
        """The number of workers and the method, such as "2 x data"."""
        spot = ", spot" if self.is_spot else ""
        return f"{self.job.workers} x {self.job.method}{spot}" if self.job.workers > 1 else f"one device{spot}"


@dataclass(frozen=True, kw_only=True)
class ScalingReport:
    """The rows of a request.

    Attributes:
        rows: a row for each number of workers and price, with the fastest method that fits, or else the fastest.
        others: rows of the other methods.
        left_out: the numbers of workers that are too large for the batch: a worker would have no example.
    """

    request: Request
    rows: tuple[Row, ...]
    others: tuple[Row, ...]
    left_out: tuple[int, ...]

    @property
    def has_limit(self) -> bool:
        """Whether a deadline or a budget is given."""
        return self.request.deadline_seconds is not None or self.request.budget is not None

    @property
    def best(self) -> Row | None:
        """The recommended row.

        With a deadline, it has the fewest workers that meet the deadline, and of these the lowest price. With a budget
        alone, it is the fastest. Without either, it is the fastest whose devices spend at least half of their time on
        training.
        """
        fitting = [one for one in self.rows if one.fits and one.meets and one.cost.seconds < math.inf]
        if self.request.deadline_seconds is not None:
            return min(fitting, key=lambda one: (one.job.workers, one.cost.price), default=None)
        if self.request.budget is None:
            fitting = [one for one in fitting if one.efficiency >= _LEAST_EFFICIENCY] or fitting
        return min(fitting, key=lambda one: (one.cost.seconds, one.job.workers, one.cost.price), default=None)

    def verdict(self) -> str:
        """Return the recommendation in sentences.

        Returns:
            The recommended set-up and the reason, or the missing information.
        """
        best, request = self.best, self.request
        if best is None:
            fitting = [one for one in self.rows if one.fits]
            if not fitting:
                return "The model fits on no device. Plan a pipeline, a smaller batch, or devices with more memory."
            near = min(fitting, key=lambda one: (one.cost.seconds, one.cost.price))
            cheap = min(fitting, key=lambda one: (one.cost.price, one.cost.seconds))
            cheapest = (
                f"; the cheapest, {cheap.name}, costs {shown_price(cheap.cost.price)}" if cheap.cost.price else ""
            )
            return (
                f"Nothing meets the limits: the fastest, {near.name}, takes {_takes(near)}{cheapest}. Give more "
                "workers, a faster link, a later deadline or more budget."
            )
        part = getattr(best.step, best.step.dominant) / best.step.seconds if best.step.seconds else 0.0
        takes = _takes(best)
        what = "the training" if request.examples is not None else "a million examples"
        if best.job.workers == 1:
            why = "One device meets the limits: do not distribute" if self.has_limit else "More workers do not pay here"
            return f"{why}. {what.capitalize()} takes {takes}{_saving(best)}."
        chosen = "The smallest set-up that meets the limits" if self.has_limit else "The fastest that pays"
        return (
            f"{chosen} is {best.name}: {what} takes {takes}, and {part:.0%} of a step is {best.step.dominant}"
            f"{_saving(best)}."
        )

    def to_json(self) -> str:
        """Return the report for programs; infinite numbers are null.

        Returns:
            A JSON document.
        """
        request, around = self.request, self.request.around
        rows = [_content(one) for one in (*self.rows, *self.others)]
        return json.dumps(
            {
                "version": 1,
                "model": request.profile.model,
                "batch": request.profile.batch,
                "device": {"name": around.device.name, "speed": around.device.speed},
                "network": {
                    "link": dataclasses.asdict(around.network.link),
                    "per_host": around.network.per_host,
                    "inside": around.network.inside and dataclasses.asdict(around.network.inside),
                },
                "examples": request.examples,
                "epochs": request.epochs,
                "grows": request.grows,
                "noise": around.noise,
                "save_seconds": request.save_seconds,
                "best": None if self.best is None else self.rows.index(self.best),
                "rows": rows[: len(self.rows)],
                "others": rows[len(self.rows) :],
                "left_out": self.left_out,
                "verdict": self.verdict(),
            },
            indent=2,
        )


def plan_scaling(request: Request) -> ScalingReport:
    """Return the report with rows for all numbers of workers of a request."""
    chosen, others, left_out = list[Row](), list[Row](), list[int]()
    for workers in request.workers:
        if request.batch(workers) < workers:
            left_out.append(workers)
            continue
        jobs = [job for method in _methods(request, workers) if (job := _job(request, method, workers)) is not None]
        for price in request.prices:
            rows = sorted(
                (_row(request, job, price) for job in jobs),
                key=lambda one: (not one.fits, one.cost.seconds, METHODS.index(one.job.method)),
            )
            chosen += rows[:1]
            others += rows[1:]
    if not chosen:
        raise ConfigError(
            f"none of {', '.join(map(str, request.workers))} workers can run {', '.join(request.methods)} with "
            f"{request.batch(1)} examples in a step. Ask for fewer, another method, or a batch for each (--grow).",
            name="workers",
            received=request.workers,
        )
    return ScalingReport(request=request, rows=tuple(chosen), others=tuple(others), left_out=tuple(left_out))


def _methods(request: Request, workers: int) -> list[str]:
    if workers == 1:
        return ["one device"]
    return [one for one in request.methods if one != "one device"]


def _job(request: Request, method: str, workers: int) -> Job | None:
    if method == "pipeline" and workers > MOST_IN_PIPELINES:
        return None
    job = request.around.job(request.profile, method, workers, request.batch(workers))
    if method == "local-sgd":
        return dataclasses.replace(job, every=min(smallest_interval(meetings(job)), _MOST_STEPS))
    return None if method == "pipeline" and job.pipeline is None else job


def _row(request: Request, job: Job, price: Price) -> Row:
    step = predict(job)
    more = more_examples(job.examples, request.batch(1), request.noise_scale)
    examples = 1e6 if request.examples is None else request.examples
    epoch = examples / job.examples * step.seconds
    devices = job.workers + (job.servers if job.method == "parameter-server" else 0)
    found = cost(request.needed / job.examples * step.seconds * more, devices, price, save_seconds=request.save_seconds)
    late = request.deadline_seconds is not None and found.seconds > request.deadline_seconds
    dear = request.budget is not None and found.price > request.budget
    alone = request.alone.seconds / request.batch(1)
    slowest, fastest = (_seconds_at(job, step, speed) for speed in request.around.speeds)
    return Row(
        job=job,
        step=step,
        low=fastest * request.factors[0],
        high=slowest * request.factors[1],
        efficiency=alone * job.examples / (job.workers * step.seconds) if step.seconds else 1.0,
        epoch_seconds=epoch,
        cost=found,
        price=price,
        fits=job.memory_bytes <= job.device.memory_bytes,
        meets=not (late or dear),
        command=command_of(job, request.script),
    )


def _seconds_at(job: Job, step: StepTime, speed: float) -> float:
    """Return the seconds of the job's step if devices have another part of their speed."""
    if speed == 1:
        return step.seconds
    device = dataclasses.replace(job.device, speed=job.device.speed * speed)
    return predict(dataclasses.replace(job, device=device)).seconds


def command_of(job: Job, script: Sequence[str]) -> str:
    """Return the shell command that runs a job."""
    if job.workers == 1:
        return shlex.join(["python", *script])
    if job.method == "pipeline":
        assert job.pipeline is not None
        return job.pipeline.command(script)
    more = {
        "local-sgd": ["--synchronization", f"local-sgd:every={job.every}"],
        "parameter-server": ["--parameter-servers", str(job.servers)],
    }.get(job.method, [])
    words = ["tfdist", "run", "--strategy", strategy_of(job.method), "-n", str(job.workers), *more, *script]
    code = f"  # DistributedOptimizer(..., compression=PowerSGD(rank={job.rank}))" if job.method == "powersgd" else ""
    return shlex.join(words) + code


def strategy_of(method: str) -> str:
    """Return the strategy that runs a method with several workers."""
    named = {"sharded": "sharded-data-parallel", "pipeline": "pipeline", "parameter-server": "parameter-server"}
    return named.get(method, "multi-worker")


def shown_seconds(seconds: float) -> str:
    """Format a time in the unit that fits.

    Example:
        >>> shown_seconds(0.0123), shown_seconds(5400), shown_seconds(float("inf"))
        ('12.3 ms', '1.5 h', 'never')
    """
    if seconds == math.inf:
        return "never"
    for unit, size in (("d", 86400.0 * 2), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / (86400.0 if unit == 'd' else size):.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


def shown_price(price: float) -> str:
    """Format a price with three digits; no digit before the decimal point is left out.

    Example:
        >>> shown_price(1234.5), shown_price(0.01234), shown_price(float("inf"))
        ('1,234', '0.0123', '-')
    """
    if not math.isfinite(price):
        return "-"
    return f"{price:,.0f}" if price >= 1000 else f"{price:.3g}"


def _takes(row: Row) -> str:
    return shown_seconds(row.cost.seconds) + (f" for {shown_price(row.cost.price)}" if row.cost.price else "")


def _saving(row: Row) -> str:
    if row.cost.interval_seconds is None:
        return ""
    return f"; save every {shown_seconds(row.cost.interval_seconds)}, {row.cost.useful:.0%} of the time is useful"


def _content(one: Row) -> dict[str, Any]:
    def finite(value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else value

    return {
        "workers": one.job.workers,
        "method": one.job.method,
        "spot": one.is_spot,
        "batch": one.job.examples,
        "step_seconds": one.step.seconds,
        "interval": [one.low, one.high],
        "terms": {name: getattr(one.step, name) for name in TERMS},
        "hidden_seconds": one.step.hidden,
        "dominant": one.step.dominant,
        "efficiency": one.efficiency,
        "examples_per_second": one.job.examples / one.step.seconds if one.step.seconds else None,
        "epoch_seconds": one.epoch_seconds,
        "training_seconds": finite(one.cost.seconds),
        "price": finite(one.cost.price),
        "useful": one.cost.useful,
        "save_interval_seconds": one.cost.interval_seconds,
        "memory_bytes": finite(one.job.memory_bytes),
        "fits": one.fits,
        "meets": one.meets,
        "command": one.command,
    }
