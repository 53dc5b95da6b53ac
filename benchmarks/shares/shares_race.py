"""Two workers, one slowed by its share of the processor, with equal shares, ideal shares and `BalanceShares`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.servers.processor_quota import has_quotas, slowed
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.bench.workers import lanes
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["ALIKE", "UNLIKE", "SharesBench", "SharesReport", "Training", "command"]

#: the arms while workers are equally fast, and while one is slow; "control" is "equal" once more
ALIKE = ("equal", "control", "balanced")
UNLIKE = ("equal", "ideal", "balanced")
_TRAINING = "benchmarks.shares.shares_training"
# One thread computes in each process: the slow one is slower by its stops, and the other has its own core.
_FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


@dataclass(frozen=True, kw_only=True)
class SharesBench(Suite):
    """Train over two workers, in ways that take turns, first equally fast and then with a slow one:

    \b
    equal      each has half of every batch
    control    the same once more, while workers are equally fast: what a ratio means without a difference
    ideal      shares in proportion to the speeds, given by hand
    balanced   tfdist.callbacks.BalanceShares, which begins with equal shares

    The kernel gives the slow worker its part of a processor: a quota (version 1 of cgroups, as root). Where there are
    no quotas, the worker is stopped and resumed in turns of 30 ms. If other programs run, that part is not the limit;
    with --slow waits, the model waits for each row instead. Steps are those of the last epoch of a training; earlier
    changes of shares count as settling.
    """

    slow: str = option("processor", "What makes a worker slow.", choices=("processor", "waits"))
    row_ms: float = option(0.4, "That the fast worker waits for a row, with --slow waits.", minimum=0)
    factor: int = option(4, "How many times slower the slow worker is.", minimum=2)
    batch_size: int = option(512, "Of both workers.")
    steps: int = option(20, "Of an epoch.")
    settle: int = option(3, "Epochs before the one that is measured.")
    every: int = option(20, "Steps between two comparisons of BalanceShares.")
    rounds: int = option(5, "Measurements of each way with a slow worker.")
    rounds_alike: int = option(15, "The same while workers are equally fast: the differences are smaller.")

    def run(self, told: Told = untold) -> "SharesReport":
        shares = {"ideal": (self.factor, 1)}
        with machine.observed() as about, lanes.Lane("multi-worker", workers=2, environment=_FEW_THREADS) as lane:
            told("starting")
            pids = lane.call(f"{_TRAINING}:pid")
            lane.call(f"{_TRAINING}:prepare")
            waits, row = self.slow == "waits", self.row_ms / 1e3

            def train(arm: str, name: str) -> Training:
                found = lane.call(
                    f"{_TRAINING}:train",
                    name=name,
                    arm=arm,
                    shares=shares.get(arm, (1, 1)),
                    batch_size=self.batch_size,
                    steps=self.steps,
                    epochs=self.settle + 1,
                    every=self.every,
                    waits=waits,
                )
                return Training.of(found)

            lane.call(f"{_TRAINING}:wait_for_rows", seconds=[row, row])
            alike = in_turns(ALIKE, lambda arm, _: train(arm, "alike"), count=self.rounds_alike, told=told)
            lane.call(f"{_TRAINING}:wait_for_rows", seconds=[row, self.factor * row])
            with contextlib.nullcontext() if waits else slowed(pids[1], self.factor):
                unlike = in_turns(
                    UNLIKE, lambda arm, number: train(arm, f"{arm} {number}"), count=self.rounds, told=told
                )
        return SharesReport(setup=self, alike=alike, unlike=unlike, machine=about)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training."""

    seconds: float  # of the measured epoch, of the slower worker
    settling: int  # changes of shares before it
    moving: int  # changes of shares in it
    shares: Sequence[int]  # at the end
    callback: float  # CPU seconds of the callback in a step, of the worker with the larger value

    @classmethod
    def of(cls, workers: Sequence[Sequence[Any]]) -> "Training":
        """Return the training from the measurements of both workers."""
        seconds, settling, moving, shares, callback = zip(*workers, strict=True)
        return cls(
            seconds=max(seconds), settling=settling[0], moving=moving[0], shares=shares[0], callback=max(callback)
        )


@dataclass(frozen=True, kw_only=True)
class SharesReport(Report):
    """Every way, and its trainings."""

    setup: SharesBench
    alike: Mapping[str, Sequence[Training]]
    unlike: Mapping[str, Sequence[Training]]

    def step_seconds(self, trainings: Sequence[Training]) -> Quartiles:
        return quartiles([one.seconds / self.setup.steps for one in trainings])

    def speed(self, trainings: Mapping[str, Sequence[Training]], arm: str, against: str) -> Quartiles:
        """Return the steps per second of a way over those of another, round by round."""
        seconds = {name: [one.seconds for one in trainings[name]] for name in (arm, against)}
        return ratio(seconds[against], seconds[arm])

    def overhead(self) -> Quartiles:
        """Return the callback's CPU time over the time of steps, while workers are equally fast."""
        return quartiles([one.callback / one.seconds for one in self.alike["balanced"]])

    def most_changes(self) -> int:
        """Return the largest number of changes before the measured epoch of a training with a slow worker."""
        return max(one.settling for one in self.unlike["balanced"])

    def derived(self) -> dict[str, Any]:
        return {
            "against_ideal": self.speed(self.unlike, "balanced", "ideal"),
            "against_equal": self.speed(self.unlike, "balanced", "equal"),
            "alike_against_equal": self.speed(self.alike, "balanced", "equal"),
            "control_against_equal": self.speed(self.alike, "control", "equal"),
            "overhead": self.overhead(),
            "most_changes": self.most_changes(),
            "moved_after_settling": sum(one.moving for one in self.unlike["balanced"]),
        }

    def shown(self) -> Iterator[Table | str]:
        setup = self.setup
        for what, trainings in (("equally fast", self.alike), (f"one {setup.factor} times slower", self.unlike)):
            yield Table(
                (what, "ms per step", "steps/s against equal", "against ideal", "shares at the end"),
                [
                    [
                        arm,
                        self._milliseconds(found),
                        str(self.speed(trainings, arm, "equal")),
                        str(self.speed(trainings, arm, "ideal")) if "ideal" in trainings else "-",
                        ", ".join(sorted({":".join(map(str, one.shares)) for one in found})),
                    ]
                    for arm, found in trainings.items()
                ],
            )
        moved = sum(one.moving for one in self.unlike["balanced"])
        overhead = self.overhead()
        yield (
            f"With the slow worker: at most {self.most_changes()} changes until shares were settled, and {moved} in "
            f"the {setup.rounds * setup.steps} steps after that. With workers equally fast, the callback's hooks used "
            f"{overhead.median:.3%} [{overhead.lower:.3%}-{overhead.upper:.3%}] of a step in processor time, with a "
            f"comparison every {setup.every} steps."
        )
        how = f"waits {setup.row_ms:g} ms for a row" if setup.slow == "waits" else "has a processor of its own"
        by = "" if setup.slow == "waits" else f"; the slow one is limited by {'a quota' if has_quotas() else 'stops'}"
        yield f"Batches of {setup.batch_size}; the fast worker {how}{by}."
        yield self.ran_on()

    def _milliseconds(self, trainings: Sequence[Training]) -> str:
        found = self.step_seconds(trainings)
        return f"{1e3 * found.median:.0f} [{1e3 * found.lower:.0f}-{1e3 * found.upper:.0f}]"


command = suite_command(
    "shares",
    SharesBench,
    examples={
        "python -m benchmarks shares": "minutes on 2 cores",
        "python -m benchmarks shares --slow waits --batch-size 256": "where other programs run",
        "python -m benchmarks shares --rounds 1 --rounds-alike 1 --steps 6 --batch-size 64": "whether it runs",
    },
    page="shares",
)
