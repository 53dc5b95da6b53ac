"""Training over a slow link: reductions in every step, compressed ones, and outer steps that meet seldom."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, untold
from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import RATES, EmulatedLink, network
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["ARMS", "PEER", "SeldomBench", "SeldomReport", "command"]

PEER = "every step"
#: what takes turns
ARMS = (PEER, "powersgd", "auto", "seldom")
_TRAINING = "benchmarks.links.seldom_training"


@dataclass(frozen=True, kw_only=True)
class SeldomBench(Suite):
    """Train digits over a slow link until they are told apart, in ways that take turns:

    \b
    every step   gradients are reduced in every step
    powersgd     the same, compressed by PowerSGD(rank=2)
    auto         the same, by what compression="auto" chooses
    seldom       DiLoCo: outer steps, whose deltas have five bits for each number

    Bytes are those that a worker's interface sends during steps; the peak is the most of them in a second. Accuracy is
    that of the mean of the weights, on test images. Seconds are of training, with the exchange that shows the mean,
    and without the first steps, which trace. The link is made of network namespaces, so it needs root.
    """

    workers: int = option(2, "Processes, each behind a link.", minimum=2)
    rate: str = option("100mbit", "Of each link, both ways.", choices=tuple(RATES))
    delay_ms: float = option(25.0, "Of a packet; a round trip takes two.", minimum=0)
    width: int = option(1024, "Of the hidden layers; 1024 makes 2.2 M weights, 3500 makes 25 M.")
    batch_size: int = option(64, "Of all workers.")
    every: int = option(25, "Steps between two exchanges of a part of the weights.")
    fragments: int = option(5, "Parts, exchanged in turn.")
    delay: int = option(2, "Steps that go on while a part travels.", minimum=0)
    steps: int = option(25, "Between two looks at the accuracy.")
    checks: int = option(6, "Looks at the accuracy.")
    target: float = option(0.9, "Accuracy to reach.", minimum=0)
    rounds: int = option(1, "Trainings in each way, each with another seed.")
    by_class: bool = option(False, "Give each worker classes of its own.", kind=bool, minimum=None)

    def run(self, told: Told = untold) -> "SeldomReport":
        link = EmulatedLink(rate=self.rate, delay_ms=self.delay_ms)
        with machine.observed() as about, network(link, self.workers) as joined:
            one = {"TF_NUM_INTEROP_THREADS": "2"}
            with lanes.Lane("multi-worker", workers=self.workers, network=joined, environment=one) as lane:
                told("starting")
                lane.call(f"{_TRAINING}:prepare", every=self.every, fragments=self.fragments, delay=self.delay)

                def train(arm: str, number: int) -> Training:
                    found = lane.call(
                        f"{_TRAINING}:train",
                        arm=arm,
                        seed=number,
                        width=self.width,
                        batch_size=self.batch_size,
                        steps=self.steps,
                        checks=self.checks,
                        by_class=self.by_class,
                    )
                    return Training.of(found)

                trainings = in_turns(ARMS, train, count=self.rounds, told=told)
        return SeldomReport(setup=self, trainings=trainings, machine=about)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training.

    Attributes:
        seconds: of training until each check, of the slowest worker.
        accuracy: at each check.
        bytes: that the busiest worker has sent from check to check.
        peak: the most bytes of a worker in a second.
    """

    seconds: Sequence[float]
    accuracy: Sequence[float]
    bytes: Sequence[int]
    peak: float

    @classmethod
    def of(cls, workers: Sequence[Sequence[Any]]) -> "Training":
        """Return what all workers have seen, each seconds, accuracies, bytes and a peak."""
        seconds, accuracy, sent, peaks = zip(*workers, strict=True)
        return cls(
            seconds=[max(each) for each in zip(*seconds, strict=True)],
            accuracy=accuracy[0],
            bytes=[max(each) for each in zip(*sent, strict=True)],
            peak=max(peaks),
        )

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to an accuracy, or None.

        Example:
            >>> Training(seconds=[1.0, 2.0], accuracy=[0.5, 0.9], bytes=[1, 1], peak=1.0).seconds_to(0.8)
            2.0
        """
        return next((each for each, found in zip(self.seconds, self.accuracy, strict=True) if found >= target), None)


@dataclass(frozen=True, kw_only=True)
class SeldomReport(Report):
    """Every way, and its trainings."""

    setup: SeldomBench
    trainings: Mapping[str, Sequence[Training]]

    def step_seconds(self, arm: str) -> Quartiles:
        return quartiles([one.seconds[-1] / (self.setup.steps * self.setup.checks) for one in self.trainings[arm]])

    def step_bytes(self, arm: str) -> Quartiles:
        return quartiles([sum(one.bytes) / (self.setup.steps * self.setup.checks) for one in self.trainings[arm]])

    def peak(self, arm: str) -> Quartiles:
        return quartiles([one.peak for one in self.trainings[arm]])

    def accuracy(self, arm: str) -> Quartiles:
        """Return the accuracy in the end."""
        return quartiles([one.accuracy[-1] for one in self.trainings[arm]])

    def seconds_to_target(self, arm: str) -> Quartiles | None:
        """Return the seconds to the target; None where a round did not reach it."""
        found = [one.seconds_to(self.setup.target) for one in self.trainings[arm]]
        return None if None in found else quartiles([each for each in found if each is not None])

    def times_fewer(self, of: str, arm: str) -> float:
        """Return how many times the bytes, or the peak, of this way those of a reduction in every step are."""
        kind = {"bytes": self.step_bytes, "peak": self.peak}[of]
        return kind(PEER).median / kind(arm).median

    def derived(self) -> dict[str, Any]:
        return {
            "results": [
                {
                    "arm": arm,
                    "step_seconds": self.step_seconds(arm),
                    "step_bytes": self.step_bytes(arm),
                    "peak": self.peak(arm),
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
        head = ("", "s per step", "kB per step", "times fewer", "peak, kB/s", "times lower", "accuracy")
        yield Table(
            (*head, f"s to {setup.target:.0%}"),
            [
                [
                    arm,
                    f"{self.step_seconds(arm).median:.3f}",
                    f"{self.step_bytes(arm).median / 1e3:,.1f}",
                    f"{self.times_fewer('bytes', arm):.1f}",
                    f"{self.peak(arm).median / 1e3:,.0f}",
                    f"{self.times_fewer('peak', arm):.1f}",
                    f"{self.accuracy(arm).median:.1%}",
                    str(self.seconds_to_target(arm) or "not reached"),
                ]
                for arm in self.trainings
            ],
        )
        yield (
            f"digits, three hidden layers of {setup.width}, SGD with momentum; {setup.workers} workers behind links of "
            f"{setup.rate} with {setup.delay_ms:g} ms each way, global batch {setup.batch_size}"
            f"{', classes of its own for each worker' if setup.by_class else ''}; every {setup.every} steps, "
            f"{setup.fragments} fragments, delay {setup.delay}; {setup.steps * setup.checks} steps, {setup.rounds} "
            "seeds; medians."
        )
        yield self.ran_on()


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
