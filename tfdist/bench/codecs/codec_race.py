"""Time to accuracy: digits, trained with each codec, with none, and by Horovod, on the same link."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.bench.codecs.codec_choice import HOROVOD, NONE, compared, linked_lanes, require_equal_parts, where
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, quartiles, untold
from tfdist.bench.workers.slow_network import EmulatedLink
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.planner.plot_style import caption, plain, require_matplotlib
from tfdist.validation import integer, number

#: SGD's, with momentum 0.9
_LEARNING_RATE = 0.02
# the peer and no compression in greys, codecs in colours
_GREYS = {HOROVOD: "#4d4d4d", NONE: "#9a9a9a"}


@dataclass(frozen=True, kw_only=True)
class CodecRace(Suite):
    codecs: Sequence[str]  # names with options, see `codec_choice.parsed`
    data: Path  # folder with the digits, as `tfdist.testing.digits.write_digits` returns it
    workers: int  # number of processes, at least 2
    global_batch_size: int  # examples per step over all workers; a multiple of their number
    target: float  # the accuracy on the test images that is to be reached
    steps: int = 150  # of each training; a multiple of ``steps_per_check``
    rounds: int = 1  # trainings with each codec, each with another seed
    steps_per_check: int = 5  # how many there are between two looks at the accuracy
    link: EmulatedLink | None = None  # what connects the workers; None: they share this host
    modules: Sequence[str] = ()  # that register codecs of the user's

    def __post_init__(self) -> None:
        integer("workers", self.workers, minimum=2)
        for name in ("global_batch_size", "steps", "rounds", "steps_per_check"):
            integer(name, getattr(self, name), minimum=1)
        number("target", self.target, above=0, maximum=1)
        require_equal_parts(self.global_batch_size, self.workers)
        if self.steps % self.steps_per_check:
            raise ConfigError(
                f"steps is {self.steps}; it must be a multiple of steps_per_check, {self.steps_per_check}."
            )

    def run(self, told: Told = untold) -> "RaceReport":
        found = compared(self.codecs, bound=False)  # the bound learns nothing
        with machine.observed() as about, linked_lanes(found, self.workers, self.link) as call:

            def train(name: str, number: int) -> Curve:
                checks = call(
                    name,
                    "tfdist.bench.codecs.codec_training:train",
                    arm=name,
                    data=str(self.data),
                    seed=number,
                    global_batch_size=self.global_batch_size,
                    learning_rate=_LEARNING_RATE,
                    steps=self.steps,
                    steps_per_check=self.steps_per_check,
                    modules=list(self.modules),
                )
                return _curve(checks)

            curves = in_turns(list(found.lanes), train, count=self.rounds, told=told)
            examples = call(NONE, "tfdist.bench.codecs.codec_training:examples", data=str(self.data))[0]
        return RaceReport(setup=self, curves=curves, examples=examples, left_out=found.left_out, machine=about)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The curve of one training: accuracy, and the slowest worker's training seconds until each check."""

    seconds: Sequence[float]
    accuracy: Sequence[float]

    def reached(self, target: float) -> int | None:
        """Return the index of the first check with this accuracy, or None."""
        return next((index for index, found in enumerate(self.accuracy) if found >= target), None)

    def seconds_to(self, target: float) -> float | None:
        index = self.reached(target)
        return None if index is None else self.seconds[index]


@dataclass(frozen=True, kw_only=True)
class RaceReport(Report):
    """One training per round for each name, the examples of an epoch, and the reasons for names that were left out."""

    setup: CodecRace
    curves: Mapping[str, Sequence[Curve]]
    examples: int
    left_out: Mapping[str, str]

    def seconds_to_target(self, name: str) -> Quartiles | None:
        """Return the seconds of training to the target; None if a round did not reach it."""
        found = [curve.seconds_to(self.setup.target) for curve in self.curves[name]]
        return None if None in found else quartiles([seconds for seconds in found if seconds is not None])

    def epochs_to_target(self, name: str) -> Quartiles | None:
        """Return the epochs of training to the target; None if a round did not reach it."""
        checks = [curve.reached(self.setup.target) for curve in self.curves[name]]
        each = self.setup.steps_per_check * self.setup.global_batch_size / self.examples
        return None if None in checks else quartiles([each * (1 + index) for index in checks if index is not None])

    def final_accuracy(self, name: str) -> Quartiles:
        return quartiles([curve.accuracy[-1] for curve in self.curves[name]])

    def speed(self, name: str, peer: str) -> Quartiles | None:
        """Return the peer's time to the target over this one's; None if one of them did not reach it."""
        if name == peer or peer not in self.curves:
            return None
        own, other = ([one.seconds_to(self.setup.target) for one in self.curves[each]] for each in (name, peer))
        ratios = [theirs / mine for mine, theirs in zip(own, other, strict=True) if mine and theirs]
        return quartiles(ratios) if len(ratios) == len(own) else None

    def derived(self) -> dict[str, Any]:
        return {
            "results": [
                {
                    "name": name,
                    "seconds_to_target": self.seconds_to_target(name),
                    "epochs_to_target": self.epochs_to_target(name),
                    "final_accuracy": self.final_accuracy(name),
                    "speed": {peer: self.speed(name, peer) for peer in (NONE, HOROVOD)},
                }
                for name in self.curves
            ]
        }

    def shown(self) -> Iterator[Table | str]:
        setup = self.setup
        rows = [
            [
                name,
                str(self.seconds_to_target(name) or "not reached"),
                str(self.epochs_to_target(name) or "-"),
                f"{self.final_accuracy(name).median:.1%}",
                *(str(self.speed(name, peer) or "-") for peer in (NONE, HOROVOD)),
            ]
            for name in self.curves
        ]
        head = ("codec", f"to {setup.target:.1%}, s of training", "epochs", "in the end")
        yield Table([*head, f"vs {NONE}", f"vs {HOROVOD}"], rows)
        yield (
            f"digits, perceptron of 2.2 M parameters, SGD with momentum; {setup.workers} workers {where(setup.link)}, "
            f"global batch {setup.global_batch_size}, {setup.steps} steps, accuracy every {setup.steps_per_check}; "
            f"{setup.rounds} seeds; median [lower-upper quartile]."
        )
        yield from (f"{name} left out: {why}" for name, why in self.left_out.items())
        yield self.ran_on()

    def draw(self, path: Path) -> None:
        """Draw accuracy on the test images over seconds of training."""
        require_matplotlib()
        from matplotlib import colormaps
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 5), dpi=200, layout="constrained")
        axes = figure.add_subplot()
        codecs = [name for name in self.curves if name not in _GREYS]
        colours = {**_GREYS, **{name: colormaps["tab20"](index % 20) for index, name in enumerate(codecs)}}
        for name, curves in self.curves.items():
            for index, curve in enumerate(curves):
                style, label = "--" if name in _GREYS else "-", None if index else name
                axes.plot(curve.seconds, curve.accuracy, style, color=colours[name], lw=1.6, label=label)
        target, setup = self.setup.target, self.setup
        axes.axhline(target, color="#222222", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_ylim(top=1.0)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("accuracy on the test images")
        title = f"Digits, {setup.workers} workers {where(setup.link)}; dotted: {target:.1%}"
        axes.set_title(title, loc="left", fontweight="bold")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        plain(axes)
        figure.supxlabel(caption(self.machine), fontsize=8, color="#555555")
        figure.savefig(path, format="png")


def _curve(workers: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    checks = list(zip(*workers, strict=True))
    seconds = [max(seconds for seconds, _ in check) for check in checks]
    return Curve(seconds=seconds, accuracy=[check[0][1] for check in checks])
