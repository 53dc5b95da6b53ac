"""Time to accuracy: digits, trained with each codec, with none, and by Horovod, on the same link."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfdist.bench.codecs import arms
from tfdist.bench.codecs.choice import HOROVOD, NONE
from tfdist.bench.workers.links import Link
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles
from tfdist.validation import integer, number

__all__ = ["Curve", "Race", "RaceReport", "run"]

#: SGD's, with momentum 0.9
_LEARNING_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class Race:
    """What is trained.

    Attributes:
        codecs: names with options, see `choice.parsed`.
        data: folder with the digits, as `tfdist.testing.digits.write_digits` returns it.
        workers: number of processes, at least 2.
        global_batch_size: examples per step over all workers; a multiple of their number.
        steps: of each training; a multiple of ``steps_per_check``.
        steps_per_check: how many there are between two looks at the accuracy.
        target: the accuracy on the test images that is to be reached.
        rounds: trainings with each codec, each with another seed.
        link: what connects the workers; None: they share this host.
        modules: that register codecs of the user's.
    """

    codecs: Sequence[str]
    data: Path
    workers: int
    global_batch_size: int
    steps: int
    target: float
    rounds: int
    steps_per_check: int = 5
    link: Link | None = None
    modules: Sequence[str] = ()

    def __post_init__(self) -> None:
        integer("workers", self.workers, minimum=2)
        for name in ("global_batch_size", "steps", "rounds", "steps_per_check"):
            integer(name, getattr(self, name), minimum=1)
        number("target", self.target, above=0, maximum=1)
        arms.require_equal_parts(self.global_batch_size, self.workers)
        if self.steps % self.steps_per_check:
            raise ConfigError(
                f"steps is {self.steps}, and the accuracy is looked at every {self.steps_per_check}. Choose a multiple."
            )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training.

    Attributes:
        seconds: of training until each check, of the slowest worker; without the first step, which traces, and without
            the checks.
        accuracy: on the test images at each check.
    """

    seconds: Sequence[float]
    accuracy: Sequence[float]

    def reached(self, target: float) -> int | None:
        """Return the first check at which the accuracy was reached; None where it was not.

        Example:
            >>> Curve(seconds=[1.0, 2.0], accuracy=[0.5, 0.9]).reached(0.8)
            1
        """
        return next((index for index, found in enumerate(self.accuracy) if found >= target), None)

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds of training to an accuracy; None where it was not reached."""
        index = self.reached(target)
        return None if index is None else self.seconds[index]


@dataclass(frozen=True, kw_only=True)
class RaceReport:
    """All trainings, and the machine.

    Attributes:
        setup: what was trained.
        curves: name -> one training per round.
        examples: in an epoch.
        left_out: name -> why it could not run.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Race
    curves: Mapping[str, Sequence[Curve]]
    examples: int
    left_out: Mapping[str, str]
    machine: Mapping[str, str]

    def seconds_to_target(self, name: str) -> Quartiles | None:
        """Return the seconds of training until the target; None where a round has not reached it."""
        found = [curve.seconds_to(self.setup.target) for curve in self.curves[name]]
        return None if None in found else quartiles([seconds for seconds in found if seconds is not None])

    def epochs_to_target(self, name: str) -> Quartiles | None:
        """Return the epochs of training until the target; None where a round has not reached it."""
        checks = [curve.reached(self.setup.target) for curve in self.curves[name]]
        each = self.setup.steps_per_check * self.setup.global_batch_size / self.examples
        return None if None in checks else quartiles([each * (1 + index) for index in checks if index is not None])

    def final_accuracy(self, name: str) -> Quartiles:
        """Return the accuracy at the end."""
        return quartiles([curve.accuracy[-1] for curve in self.curves[name]])

    def speed(self, name: str, peer: str) -> Quartiles | None:
        """Return how many times sooner than by a peer the target was reached; None where it was not."""
        if name == peer or peer not in self.curves:
            return None
        own, other = ([one.seconds_to(self.setup.target) for one in self.curves[each]] for each in (name, peer))
        ratios = [theirs / mine for mine, theirs in zip(own, other, strict=True) if mine and theirs]
        return quartiles(ratios) if len(ratios) == len(own) else None

    def to_json(self) -> str:
        """Return the report as JSON, times to the target and ratios included."""

        def shown(found: Quartiles | None) -> dict[str, float] | None:
            return None if found is None else asdict(found)

        derived = [
            {
                "name": name,
                "seconds_to_target": shown(self.seconds_to_target(name)),
                "epochs_to_target": shown(self.epochs_to_target(name)),
                "final_accuracy": shown(self.final_accuracy(name)),
                "speed": {peer: shown(self.speed(name, peer)) for peer in (NONE, HOROVOD)},
            }
            for name in self.curves
        ]
        return json.dumps({**asdict(self), "results": derived}, indent=2, default=str)


def run(setup: Race, *, on_turn: Callable[[str, int], None] = lambda name, number: None) -> RaceReport:
    """Train with each codec, with none and by Horovod, one after the other, and return the report.

    Args:
        setup: what to train.
        on_turn: told of each name and round before it is trained.
    Raises:
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Race(codecs=["powersgd"], data=write_digits(), workers=2, global_batch_size=64, steps=100, target=0.95,
        ...          rounds=1)).speed("powersgd", "horovod")                                        # doctest: +SKIP
    """
    about = machine.describe()
    found = arms.compared(setup.codecs, bound=False)  # the bound learns nothing
    curves: dict[str, list[Curve]] = {name: [] for name in found.lanes}
    with arms.running(found, setup.workers, setup.link) as call:
        for number, order in enumerate(found.orders(setup.rounds), start=1):
            for name in order:
                on_turn(name, number)
                told = call(
                    name,
                    "fits:train",
                    arm=name,
                    data=str(setup.data),
                    seed=number,
                    global_batch_size=setup.global_batch_size,
                    learning_rate=_LEARNING_RATE,
                    steps=setup.steps,
                    steps_per_check=setup.steps_per_check,
                    modules=list(setup.modules),
                )
                curves[name].append(_curve(told))
        examples = call(NONE, "fits:examples", data=str(setup.data))[0]
    about["load average at the end"] = machine.describe()["load average"]
    return RaceReport(setup=setup, curves=curves, examples=examples, left_out=found.left_out, machine=about)


def _curve(workers: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """Return the training of the (seconds, accuracy) at each check of all workers."""
    checks = list(zip(*workers, strict=True))
    seconds = [max(seconds for seconds, _ in check) for check in checks]
    return Curve(seconds=seconds, accuracy=[check[0][1] for check in checks])
