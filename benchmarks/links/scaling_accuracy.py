"""Predicted steps of `tfdist plan` and measured ones, over links of several rates and delays.

For each link and model, costs and layers are measured first. Then each training follows its prediction. The speed of a
virtual machine varies, so each prediction is for the speed of that moment: that of a step of one worker without links,
measured just before, relative to the same step when the layers were measured.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tfdist.bench.suite import Report, Suite, Table, Told, option, rotated, turn, untold
from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import EmulatedLink, Network, network
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.planner.layer_profile import Profile, beside_each_other
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.job_steps import Job, StepTime, predict

__all__ = ["ARMS", "MODELS", "Cell", "ScalingBench", "ScalingReport", "command"]

MODELS = ("dense", "convolutions", "residual", "transformer", "sleeping")
ARMS = ("data", "sharded", "pipeline", "powersgd", "local-sgd")
LOCAL = "local"
_EVERY = 8
_DIVISORS = (8, 32)  # of the batch, beside the number of workers: micro-batches
_TRAINING = "benchmarks.links.scaling_training"


@dataclass(frozen=True, kw_only=True)
class ScalingBench(Suite):
    """Compare the predictions of `tfdist plan` with steps of `fit` over links of several rates and delays.

    Each prediction is made before its training. It uses the layers, measured in all processes at once, and measurements
    of all-reduces, a codec and matrices. The only training steps that it uses are those of one worker without links.
    They give the speed of the machine just before. The error is the predicted step minus the measured one, as a part
    of the measured one. The links are made of network namespaces, so the benchmark needs root; "local" has none: the
    processes share their host's memory. The layers of the model "sleeping" sleep instead of computing, so its steps
    show the cost of links also on a busy machine.
    """

    links: Sequence[str] = option(("local", "1gbit:0", "100mbit:5"), "RATE:MS or local, repeated.", flags=["--link"])
    arms: Sequence[str] = option((), "Only this one.", choices=ARMS, flags=["--method"])
    models: Sequence[str] = option(MODELS[:-1], "Only this one.", choices=MODELS, flags=["--model"])
    workers: int = option(2, "Processes, each behind a link.", minimum=2)
    steps: int = option(24, "Steps of a measurement, after as many others.", minimum=_EVERY)
    seconds: float = option(3.0, "That layers are measured.", minimum=0)
    rounds: int = option(3, "Trainings in each way.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.links:
            _emulated(text)

    def run(self, told: Told = untold) -> "ScalingReport":
        cells: list[Cell] = []
        inputs: list[dict[str, Any]] = []
        with machine.observed() as about:
            for text in self.links or (LOCAL,):
                with self._joined(text) as joined, self._lanes(joined) as (lane, apart, staged):
                    told(f"{text}: costs")
                    for one in (lane, apart, staged):
                        one.call("benchmarks.parallel.parallel_networks:bind")
                    lane.call(f"{_TRAINING}:prepare", every=_EVERY)
                    costs = lane.call(f"{_TRAINING}:costs")[0]
                    for model in self.models or MODELS:
                        told(f"{text}, {model}: layers")
                        divisors = (self.workers, *_DIVISORS)
                        how = {"name": model, "divisors": divisors, "seconds": self.seconds}
                        found = [Profile.from_json(one) for one in apart.call(f"{_TRAINING}:measured_profile", **how)]
                        profile = beside_each_other(found, found[0])
                        inputs.append({"link": text, "costs": costs, "profile": profile.to_json()})
                        case = _Case(self, text, model, profile, costs)
                        cells += case.cells({"apart": apart, "lane": lane, "staged": staged}, told)
        return ScalingReport(setup=self, cells=cells, inputs=inputs, machine=about)

    def _joined(self, text: str) -> contextlib.AbstractContextManager[Network | None]:
        """The network of the workers; None if they share a host."""
        link = _emulated(text)
        return contextlib.nullcontext() if link is None else network(link, self.workers)

    @contextlib.contextmanager
    def _lanes(self, joined: Network | None) -> Iterator[tuple[lanes.Lane, lanes.Lane, lanes.Lane]]:
        """The workers behind links, the same number of independent processes, and the stages behind links."""
        environment = {"TF_NUM_INTEROP_THREADS": "2"}
        own: dict[str, Any] = {"workers": self.workers, "environment": environment}
        with (
            lanes.Lane("multi-worker", network=joined, **own) as lane,
            lanes.Lane("tensorflow", **own) as apart,
            lanes.Lane("pipeline", network=joined, **own) as staged,
        ):
            yield lane, apart, staged


@dataclass(frozen=True)
class _Case:
    """A model over a link, with what was measured for the predictions."""

    setup: ScalingBench
    link: str
    model: str
    profile: Profile
    costs: Mapping[str, float]

    def cells(self, found: Mapping[str, lanes.Lane], told: Told) -> "list[Cell]":
        """Predict and measure the steps of all methods, in rounds."""
        setup = self.setup
        first = {arm: self.job(arm) for arm in setup.arms or ARMS}
        arms = [arm for arm, job in first.items() if arm != "pipeline" or job.pipeline is not None]
        predicted: dict[str, list[StepTime]] = {arm: [] for arm in arms}
        measured: dict[str, list[float]] = {arm: [] for arm in arms}
        steps = -(-setup.steps // _EVERY) * _EVERY
        before = self._alone_seconds(found["apart"])
        for number in range(setup.rounds):
            for arm in rotated(arms, number):
                told(f"{self.link}, {self.model}, {arm}, {turn(number, setup.rounds)}")
                job = self.job(arm, self._alone_seconds(found["apart"]) / before)
                predicted[arm].append(predict(job))
                how: dict[str, Any] = {"name": self.model, "arm": arm, "steps": steps}
                if arm == "pipeline" and (plan := job.pipeline) is not None:
                    how |= {"stages": plan.layers, "microbatches": plan.microbatches, "mesh": plan.mesh}
                lane = found["staged" if arm == "pipeline" else "lane"]
                measured[arm].append(max(lane.call(f"{_TRAINING}:train", **how)))
                pair = f"{1e3 * predicted[arm][-1].seconds:.1f} ms predicted, {1e3 * measured[arm][-1]:.1f} ms measured"
                told(f"{self.link}, {self.model}, {arm}: {pair}")
        return [
            Cell(
                link=self.link,
                model=self.model,
                arm=arm,
                predicted=median(one.seconds for one in predicted[arm]),
                dominant=predict(first[arm]).dominant,
                measured=median(measured[arm]),
                terms=predicted[arm],
                rounds=measured[arm],
            )
            for arm in arms
        ]

    def job(self, arm: str, slower: float = 1.0) -> Job:
        """Return the job whose step is predicted, on a machine whose computing takes this many times as long."""
        costs = self.costs
        link = Link(
            latency_seconds=costs["latency_seconds"],
            bytes_per_second=costs["bytes_per_second"],
            is_local=self.link == LOCAL,
            is_direct=self.link != LOCAL,
        )
        return Job(
            profile=slowed(self.profile, slower),
            network=HostNetwork(link=link),
            method=arm,
            workers=self.setup.workers,
            noise=costs["noise"],
            every=_EVERY,
            codec_seconds=slower * costs["codec_seconds"],
            codec_seconds_per_byte=slower * costs["codec_seconds_per_byte"],
        )

    def _alone_seconds(self, apart: lanes.Lane) -> float:
        return max(apart.call(f"{_TRAINING}:alone_seconds"))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A step that was first predicted, and then measured."""

    link: str
    model: str
    arm: str
    # predicted and measured: the medians of all rounds; measured steps are those of the slowest worker
    predicted: float
    dominant: str  # the largest term of the prediction
    measured: float
    terms: Sequence[StepTime] = ()  # the prediction of each round
    rounds: Sequence[float] = ()  # the measured step of each round

    @property
    def error(self) -> float:
        """The error of the prediction, as a part of the measured step; above 0 if the prediction is too long."""
        if not self.rounds:
            return self.predicted / self.measured - 1
        return median(one.seconds / taken for one, taken in zip(self.terms, self.rounds, strict=True)) - 1


@dataclass(frozen=True, kw_only=True)
class ScalingReport(Report):
    """All cells, and the measurements that the predictions were made of: the costs of a link and a model's profile."""

    setup: ScalingBench
    cells: Sequence[Cell]
    inputs: Sequence[Mapping[str, Any]] = ()

    def errors(self) -> tuple[float, float]:
        """Return the median error, and the bound below which 95 % of the cells are."""
        sizes = [abs(one.error) for one in self.cells]
        return float(np.median(sizes)), float(np.quantile(sizes, 0.95))

    def regret(self) -> float:
        """Return the mean of the measured steps that predictions choose, over that of the best ones, minus 1."""
        found = []
        for link, model in {(one.link, one.model): None for one in self.cells}:
            own = [one for one in self.cells if (one.link, one.model) == (link, model)]
            chosen = min(own, key=lambda one: one.predicted)
            found.append(chosen.measured / min(one.measured for one in own) - 1)
        return sum(found) / len(found)

    def derived(self) -> dict[str, Any]:
        middle, most = self.errors()
        return {"median_error": middle, "p95_error": most, "regret": self.regret()}

    def shown(self) -> Iterator[Table | str]:
        yield Table(
            ("link", "model", "method", "predicted, ms", "measured, ms", "error", "largest term"),
            [
                [
                    *(one.link, one.model, one.arm),
                    *(f"{1e3 * one.predicted:.1f}", f"{1e3 * one.measured:.1f}"),
                    *(f"{one.error:+.0%}", one.dominant),
                ]
                for one in self.cells
            ],
        )
        middle, most = self.errors()
        yield (
            f"error: median {middle:.1%}, 95 % of the cells below {most:.1%}; the method that is predicted to be the "
            f"fastest takes {self.regret():.1%} longer than the fastest; {self.setup.workers} workers, "
            f"{self.setup.rounds} rounds of {self.setup.steps} steps. {self.ran_on()}"
        )


def slowed(profile: Profile, factor: float) -> Profile:
    """Return the profile of a machine on which everything takes this many times as long."""
    return dataclasses.replace(
        profile,
        whole_seconds=tuple(factor * one for one in profile.whole_seconds),
        repeated_seconds=tuple(factor * one for one in profile.repeated_seconds),
        update_seconds=factor * profile.update_seconds,
        adding_seconds=factor * profile.adding_seconds,
        fixed_seconds=factor * profile.fixed_seconds,
        call_seconds=factor * profile.call_seconds,
        alone=profile.alone and slowed(profile.alone, factor),
    )


def _emulated(text: str) -> EmulatedLink | None:
    if text == LOCAL:
        return None
    rate, _, delay = text.partition(":")
    try:
        return EmulatedLink(rate=rate, delay_ms=float(delay or "0"))
    except ValueError as error:
        raise ConfigError(f"--link is {text!r}; write a rate and milliseconds, as 100mbit:5.", name="links") from error


command = suite_command(
    "scaling",
    ScalingBench,
    examples={
        "python -m benchmarks scaling": "three links, four models, five methods: an hour",
        "python -m benchmarks scaling --link 100mbit:50 --model dense": "one link, one model",
        "python -m benchmarks scaling --link 1gbit:0 --model dense --rounds 1 --seconds 0.3": "a glance",
    },
    page="plan",
)
