"""Predicted steps of `tfdist plan` and measured ones, over links of several rates and delays.

For each link and model, costs and layers are measured first, and all steps are predicted before any training.
"""

import contextlib
from collections.abc import Iterator, Sequence
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
from tfdist.planner.scaling.job_steps import Job, predict

__all__ = ["ARMS", "MODELS", "Cell", "ScalingBench", "ScalingReport", "command"]

MODELS = ("dense", "convolutions", "residual", "transformer")
ARMS = ("data", "sharded", "powersgd", "local-sgd")
_EVERY = 8
_TRAINING = "benchmarks.links.scaling_training"


@dataclass(frozen=True, kw_only=True)
class ScalingBench(Suite):
    """Compare the predictions of `tfdist plan` with steps of `fit` over links of several rates and delays.

    All predictions are made before any training. They use the layers, measured in all processes at once, and
    measurements of all_reduces, a codec and matrices, but no training steps. The error is the predicted step minus the
    measured one, as a part of the measured one. The links are made of network namespaces, so the benchmark needs root.
    """

    links: Sequence[str] = option(("1gbit:0", "100mbit:5"), "RATE:MS, repeated.", flags=["--link"])
    models: Sequence[str] = option((), "Only this one.", choices=MODELS, flags=["--model"])
    workers: int = option(2, "Processes, each behind a link.", minimum=2)
    steps: int = option(24, "Steps of a measurement, after as many others.", minimum=_EVERY)
    seconds: float = option(3.0, "That layers are measured.", minimum=0)
    rounds: int = option(3, "Trainings in each way.")

    def run(self, told: Told = untold) -> "ScalingReport":
        cells: list[Cell] = []
        with machine.observed() as about:
            for text in self.links or ("1gbit:0",):
                link = _emulated(text)
                with network(link, self.workers) as joined, self._lanes(joined) as (lane, apart):
                    told(f"{link}: costs")
                    lane.call(f"{_TRAINING}:prepare", every=_EVERY)
                    apart.call("benchmarks.parallel.parallel_networks:bind")
                    costs = lane.call(f"{_TRAINING}:costs")[0]
                    for model in self.models or MODELS:
                        told(f"{link}, {model}: layers")
                        how = {"name": model, "workers": self.workers, "seconds": self.seconds}
                        found = [Profile.from_json(one) for one in apart.call(f"{_TRAINING}:measured_profile", **how)]
                        cells += self._cells(str(link), model, beside_each_other(found, found[0]), costs, lane, told)
        return ScalingReport(setup=self, cells=cells, machine=about)

    @contextlib.contextmanager
    def _lanes(self, joined: Network) -> Iterator[tuple[lanes.Lane, lanes.Lane]]:
        """The workers behind links, and the same number of independent processes."""
        environment = {"TF_NUM_INTEROP_THREADS": "2"}
        with (
            lanes.Lane("multi-worker", workers=self.workers, network=joined, environment=environment) as lane,
            lanes.Lane("tensorflow", workers=self.workers, environment=environment) as apart,
        ):
            yield lane, apart

    def _cells(self, link: str, model: str, profile: Profile, costs: Any, lane: lanes.Lane, told: Told) -> "list[Cell]":
        predicted = {arm: predict(_job(profile, costs, arm, self.workers)) for arm in ARMS}
        seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
        steps = -(-self.steps // _EVERY) * _EVERY
        for number in range(self.rounds):
            for arm in rotated(list(ARMS), number):
                told(f"{link}, {model}, {arm}, {turn(number, self.rounds)}")
                seconds[arm].append(max(lane.call(f"{_TRAINING}:train", name=model, arm=arm, steps=steps)))
        return [
            Cell(
                link=link,
                model=model,
                arm=arm,
                predicted=predicted[arm].seconds,
                dominant=predicted[arm].dominant,
                measured=median(seconds[arm]),
            )
            for arm in ARMS
        ]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A step that was first predicted, and then measured.

    Attributes:
        dominant: the largest term of the prediction.
        measured: the median of all rounds, of the slowest worker.
    """

    link: str
    model: str
    arm: str
    predicted: float
    dominant: str
    measured: float

    @property
    def error(self) -> float:
        """The error of the prediction, as a part of the measured step; above 0 if the prediction is too long."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class ScalingReport(Report):
    """All cells."""

    setup: ScalingBench
    cells: Sequence[Cell]

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


def _emulated(text: str) -> EmulatedLink:
    rate, _, delay = text.partition(":")
    try:
        return EmulatedLink(rate=rate, delay_ms=float(delay or "0"))
    except ValueError as error:
        raise ConfigError(f"--link is {text!r}; write a rate and milliseconds, as 100mbit:5.", name="links") from error


def _job(profile: Profile, costs: Any, arm: str, workers: int) -> Job:
    link = Link(latency_seconds=costs["latency_seconds"], bytes_per_second=costs["bytes_per_second"])
    return Job(
        profile=profile,
        network=HostNetwork(link=link),
        method=arm,
        workers=workers,
        noise=costs["noise"],
        every=_EVERY,
        codec_seconds=costs["codec_seconds"],
        codec_seconds_per_byte=costs["codec_seconds_per_byte"],
    )


command = suite_command(
    "scaling",
    ScalingBench,
    examples={
        "python -m benchmarks scaling": "two links, four models, four methods: half an hour",
        "python -m benchmarks scaling --link 100mbit:50 --model dense": "one link, one model",
        "python -m benchmarks scaling --link 1gbit:0 --model dense --rounds 1 --seconds 0.3": "a glance",
    },
    page="plan",
)
