"""The search for a batch, trial by trial, and its report."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tfdist.errors import TfdistError
from tfdist.planner.plot_style import plain, require_matplotlib
from tfdist.tune import batch_search
from tfdist.tune.batch_search import NEAR, Outcome
from tfdist.tune.batch_trial import Job, Trial, attempt

_APART = 1.25  # of two batches that both have a number at the axis


@dataclass(frozen=True, kw_only=True)
class Report:
    """The trials in order, and the machine that they ran on."""

    trials: tuple[Trial, ...]
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def fitting(self) -> dict[int, Trial]:
        """The trials that fit, by batch."""
        return {one.batch: one for one in sorted(self.trials, key=lambda one: one.batch) if one.outcome is Outcome.FITS}

    @property
    def chosen(self) -> dict[str, Trial]:
        """The largest batch that fits, the fastest, and the smallest that is nearly as fast; empty if none fits."""
        if not self.fitting:
            return {}
        tried = [one.tried for one in self.trials]
        found = {
            "largest": batch_search.largest(tried),
            "fastest": batch_search.fastest(tried),
            "nearly": batch_search.nearly_best(tried),
        }
        return {name: self.fitting[batch] for name, batch in found.items()}

    def verdict(self) -> list[str]:
        if not self.fitting:
            smallest = min(self.trials, key=lambda one: one.batch)
            none = "no batch was measured" if smallest.outcome is Outcome.SHORT else "no batch fits"
            return [f"{none}: {smallest.batch} is the smallest that was tried. {smallest.text}"]
        chosen = self.chosen
        largest, fastest, nearly = chosen["largest"], chosen["fastest"], chosen["nearly"]
        above = [one for one in self.trials if one.batch > largest.batch]
        border = min(above, key=lambda one: one.batch) if above else None
        why = "nothing larger was tried" if border is None else f"{border.batch:,}: {border.text.splitlines()[0]}"
        short = border is not None and border.outcome is Outcome.SHORT
        most = "largest that could be measured, and memory did not run out" if short else "largest that fits"
        part = f"{nearly.speed / fastest.speed:.0%} of that"
        return [
            f"{most}: {_named(largest)}; {why}",
            f"most examples per second: {_named(fastest)}, with {fastest.speed:,.0f}",
            f"smallest within {1 - NEAR:.0%} of it: {_named(nearly)}, with {nearly.speed:,.0f}, {part}: take this one",
        ]

    def to_json(self) -> str:
        """Return the report as JSON for programs; ``chosen`` has batches."""
        content = asdict(self) | {"chosen": {name: trial.batch for name, trial in self.chosen.items()}}
        return json.dumps({"version": 1, **content, "verdict": self.verdict()}, indent=2)


def _named(trial: Trial) -> str:
    """Return a batch as it was given, and the batch of a replica if it differs."""
    more = f" ({trial.per_replica:,} on each of {trial.replicas} replicas)" if trial.replicas > 1 else ""
    return f"{trial.batch:,}{more}"


def tune(
    job: Job,
    *,
    start: int,
    most: int,
    precision: float,
    machine: dict[str, str],
    on_trial: Callable[[Sequence[Trial], int | None], None] = lambda trials, following: None,
    trial_of: Callable[[int, Job], Trial] = attempt,
) -> Report:
    """Try batches until the largest that fits and the fastest one are known."""
    trials: list[Trial] = []
    while True:
        batch = batch_search.following([one.tried for one in trials], start=start, most=most, precision=precision)
        on_trial(trials, batch)
        if batch is None:
            return Report(trials=tuple(trials), machine=machine)
        trials.append(trial_of(batch, job))
        if all(one.outcome is Outcome.FAILED for one in trials):
            raise TfdistError(
                f"the script fails with a batch of {batch}: {trials[0].text}", name="batch", received=batch
            )


def draw(report: Report, path: Path) -> None:
    """Draw the examples per second over the batch, and the limit of memory, as a PNG."""
    require_matplotlib()
    from matplotlib.figure import Figure

    fitting = list(report.fitting.values())
    figure = Figure(figsize=(8, 5), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([one.batch for one in fitting], [one.speed for one in fitting], "-o", color="#1f6fb4", ms=5)
    chosen = report.chosen
    for name, text, colour in (("fastest", "fastest", "#1f6fb4"), ("nearly", "smallest within 5 %", "#2f8f4e")):
        if name in chosen:
            one = chosen[name]
            axes.plot([one.batch], [one.speed], "o", color=colour, ms=11, label=f"{text}: {one.batch:,}")
    beyond = [one.batch for one in report.trials if fitting and one.batch > fitting[-1].batch]
    if beyond:
        why = next(one.outcome.value for one in report.trials if one.batch == min(beyond))
        axes.axvline(min(beyond), color="#d1602b", linestyle="--", label=f"{why}: {min(beyond):,}")
    axes.set_xscale("log", base=2)
    batches = [one.batch for one in fitting]
    ticks = apart(batches, keep=[one.batch for one in chosen.values()])
    axes.set_xticks(ticks, [f"{batch:,}" for batch in ticks], rotation=45)
    axes.set_xticks(batches, minor=True)
    axes.tick_params(which="minor", labelbottom=False)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("batch")
    axes.set_ylabel("examples per second")
    axes.set_title("Which batch pays", loc="left", fontweight="bold")
    about = report.machine
    figure.suptitle(
        f"{about['processor']}, {about['cores']} cores; TensorFlow {about['tensorflow']}; {about['time'][:10]}",
        fontsize=9,
        color="#555555",
    )
    axes.legend(frameon=False)
    plain(axes)
    figure.savefig(path, format="png")


def apart(batches: Sequence[int], *, keep: Sequence[int]) -> list[int]:
    """Return the batches to label: those to keep, and others far enough away from them."""
    shown = sorted(dict.fromkeys(batch for batch in batches if batch in keep))
    shown = [one for place, one in enumerate(shown) if place == 0 or one >= _APART * shown[place - 1]]
    for batch in batches:
        if all(max(batch, one) >= _APART * min(batch, one) for one in shown):
            shown.append(batch)
    return sorted(shown)
