"""Training over a slow link: reductions in every step, compressed ones, and outer steps at seldom meetings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, untold
from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import RATES, EmulatedLink, network
from tfdist.cli.bench.suite_command import suite_command
from tfdist.gradients.outer import meeting_schedules
from tfdist.planner import machine

__all__ = ["ARMS", "PEER", "SeldomBench", "SeldomReport", "command"]

PEER = "every step"
#: the ways that take turns
ARMS = (PEER, "powersgd", "auto", "alone", "seldom")
#: steps in which nothing travels
ALONE = "alone"
_TRAINING = "benchmarks.links.seldom_training"
_SCHEDULE = "diloco:every=25,fragments=5,delay=2,wire=int4"


@dataclass(frozen=True, kw_only=True)
class SeldomBench(Suite):
    """Train over a slow link until an accuracy is reached, in ways that take turns:

    \b
    every step, powersgd, auto   reductions in every step: whole, and by codecs
    alone                        workers never meet: the computing of steps
    seldom                       by the schedule; with DiLoCo, int4 sends five bits for each number

    Bytes are those that a worker's interface sends during steps; the peak is the most of them in a second. Accuracy is
    that of the mean of the weights. Seconds are without the first steps, which trace. Computing compares steps with
    those of "alone". The link is made of network namespaces, so the benchmark needs root.
    """

    workers: int = option(2, "Processes, each behind a link.", minimum=2)
    rate: str = option("100mbit", "Of each link, both ways.", choices=tuple(RATES))
    delay_ms: float = option(25.0, "Of a packet; a round trip takes two.", minimum=0)
    width: int = option(1024, "Of the hidden layers; 1024 makes 2.2 M weights, 3500 makes 25 M.")
    batch_size: int = option(64, "Of all workers.")
    schedule: str = option(_SCHEDULE, "How seldom workers meet.", metavar="SCHEDULE")
    steps: int = option(25, "Between two looks at the accuracy.")
    checks: int = option(6, "Looks at the accuracy.")
    task: str = option("digits", "What is learned.", choices=("digits", "text"))
    ways: tuple[str, ...] = option(ARMS, "Those that take turns.", choices=ARMS, metavar="WAY")
    target: float = option(0.9, "Accuracy to reach.", minimum=0)
    rounds: int = option(1, "Trainings in each way, with other seeds.")
    by_class: bool = option(False, "Give each worker classes of its own.", kind=bool, minimum=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        meeting_schedules.parse(self.schedule, name="schedule")

    def run(self, told: Told = untold) -> "SeldomReport":
        link = EmulatedLink(rate=self.rate, delay_ms=self.delay_ms)
        with machine.observed() as about, network(link, self.workers) as joined:
            one = {"TF_NUM_INTEROP_THREADS": "2"}
            with lanes.Lane("multi-worker", workers=self.workers, network=joined, environment=one) as lane:
                told("starting")
                lane.call(f"{_TRAINING}:prepare", schedule=self.schedule)

                def train(arm: str, number: int) -> Training:
                    found = lane.call(
                        f"{_TRAINING}:train",
                        arm=arm,
                        task=self.task,
                        seed=number,
                        width=self.width,
                        batch_size=self.batch_size,
                        steps=self.steps,
                        checks=self.checks,
                        by_class=self.by_class,
                    )
                    return Training.of(found)

                trainings = in_turns(self.ways, train, count=self.rounds, told=told)
        return SeldomReport(setup=self, trainings=trainings, machine=about)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training."""

    seconds: Sequence[float]  # of training until each check, of the slowest worker
    accuracy: Sequence[float]  # at each check
    bytes: Sequence[int]  # sent by the busiest worker from check to check
    peak: float  # the most bytes of a worker in a second
    stepping: Sequence[float]  # seconds of only the steps from check to check, of the slowest worker

    @classmethod
    def of(cls, workers: Sequence[Sequence[Any]]) -> "Training":
        """Return the training from its workers, with their seconds, accuracies, bytes, peaks and seconds of steps."""
        seconds, accuracy, sent, peaks, stepping = zip(*workers, strict=True)
        return cls(
            seconds=[max(each) for each in zip(*seconds, strict=True)],
            accuracy=accuracy[0],
            bytes=[max(each) for each in zip(*sent, strict=True)],
            peak=max(peaks),
            stepping=[max(each) for each in zip(*stepping, strict=True)],
        )

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to an accuracy, or None.

        Example:
            >>> seen = dict(seconds=[1.0, 2.0], accuracy=[0.5, 0.9])
            >>> Training(**seen, bytes=[1, 1], peak=1.0, stepping=[1.0, 1.0]).seconds_to(0.8)
            2.0
        """
        return next((each for each, found in zip(self.seconds, self.accuracy, strict=True) if found >= target), None)


@dataclass(frozen=True, kw_only=True)
class SeldomReport(Report):
    """Every way, and its trainings."""

    setup: SeldomBench
    trainings: Mapping[str, Sequence[Training]]

    def step_seconds(self, arm: str) -> Quartiles:
        """Return the seconds of steps alone, without the exchange of the mean that a check of the accuracy asks for."""
        return quartiles([sum(one.stepping) / (self.setup.steps * self.setup.checks) for one in self.trainings[arm]])

    def step_bytes(self, arm: str) -> Quartiles:
        return quartiles([sum(one.bytes) / (self.setup.steps * self.setup.checks) for one in self.trainings[arm]])

    def peak(self, arm: str) -> Quartiles:
        return quartiles([one.peak for one in self.trainings[arm]])

    def accuracy(self, arm: str) -> Quartiles:
        return quartiles([one.accuracy[-1] for one in self.trainings[arm]])

    def seconds_to_target(self, arm: str) -> Quartiles | None:
        """Return the seconds to the target; None if a round did not reach it."""
        found = [one.seconds_to(self.setup.target) for one in self.trainings[arm]]
        return None if None in found else quartiles([each for each in found if each is not None])

    def times_fewer(self, of: str, arm: str) -> float | None:
        """Return the bytes, or the peak, of a reduction in every step over this way's; None if they are unknown."""
        kind = {"bytes": self.step_bytes, "peak": self.peak}[of]
        if PEER not in self.trainings or not kind(arm).median:
            return None
        return kind(PEER).median / kind(arm).median

    def computing(self, arm: str) -> float | None:
        """Return the computing part of the time of steps: the time of workers that never meet over this way's."""
        if ALONE not in self.trainings:
            return None
        computed, taken = (quartiles([sum(one.stepping) for one in self.trainings[each]]) for each in (ALONE, arm))
        return computed.median / taken.median

    def derived(self) -> dict[str, Any]:
        return {
            "results": [
                {
                    "arm": arm,
                    "step_seconds": self.step_seconds(arm),
                    "step_bytes": self.step_bytes(arm),
                    "peak": self.peak(arm),
                    "computing": self.computing(arm),
                    "times_fewer_bytes": self.times_fewer("bytes", arm),
                    "times_lower_peak": self.times_fewer("peak", arm),
                    "accuracy": self.accuracy(arm),
                    "seconds_to_target": self.seconds_to_target(arm),
                }
                for arm in self.trainings
            ]
        }

    def shown(self) -> Iterator[Table | str]:
        setup = self.setup
        head = ("", "s per step", "computing", "kB per step", "times fewer", "peak, kB/s", "times lower", "accuracy")
        yield Table(
            (*head, f"s to {setup.target:.0%}"),
            [
                [
                    arm,
                    f"{self.step_seconds(arm).median:.3f}",
                    _number(self.computing(arm), ".0%"),
                    f"{self.step_bytes(arm).median / 1e3:,.1f}",
                    _number(self.times_fewer("bytes", arm), ".1f"),
                    f"{self.peak(arm).median / 1e3:,.0f}",
                    _number(self.times_fewer("peak", arm), ".1f"),
                    "{0.median:.1%} [{0.lower:.1%}-{0.upper:.1%}]".format(self.accuracy(arm)),
                    str(self.seconds_to_target(arm) or "not reached"),
                ]
                for arm in self.trainings
            ],
        )
        yield (
            f"{setup.task}, three hidden layers of {setup.width}; {setup.workers} workers behind links of "
            f"{setup.rate} with {setup.delay_ms:g} ms each way, global batch {setup.batch_size}"
            f"{', classes of its own for each worker' if setup.by_class else ''}; {setup.schedule}; "
            f"{setup.steps * setup.checks} steps, {setup.rounds} seeds; medians."
        )
        yield self.ran_on()


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


command = suite_command(
    "seldom",
    SeldomBench,
    examples={
        "python -m benchmarks seldom": "minutes on 2 cores",
        "python -m benchmarks seldom --width 3500 --steps 25 --checks 1": "25 M weights; bytes, not accuracy",
        "python -m benchmarks seldom --by-class --rounds 5": "each worker has classes of its own",
    },
    page="synchronization",
)
