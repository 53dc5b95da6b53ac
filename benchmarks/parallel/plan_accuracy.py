"""Predicted and measured steps: each model on one device, data parallel on two, and in two stages.

A model is profiled in one process alone, and in two at once, whose processors share caches, memory and the clock. The
two use tfdist's steps, like plans of two processes. The first profile gives the step of plans of one process; the
second one, and the line between two processes, give those of plans of two. From these the plan is chosen. Profiles, the
line and the plans' steps are measured in turns, because the speed of a machine varies. Every process has one processor.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, option, ratio, rotated, turn, untold
from tfdist.bench.workers import lanes
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import Profile, beside_each_other
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import Setting, Stage
from tfdist.planner.stage_search import best_stages
from tfdist.planner.step_time import predict

__all__ = ["MODELS", "PLANS", "PlanAccuracyBench", "PlanAccuracyReport", "Row", "command", "predicted"]

MODELS = ("dense", "convolutions", "residual", "transformer")
PLANS = ("one device", "data 2", "pipeline 2")
_ALONE, _DATA, _PIPELINE = PLANS
_TWO = "two at once"  # independent processes that share only the machine
_PROFILE = 3.0  # the factor by which layers are measured longer than steps
_TRAINING = "benchmarks.parallel.plan_training"


@dataclass(frozen=True, kw_only=True)
class PlanAccuracyBench(Suite):
    """Compare the predictions of `tfdist parallel plan` with steps of `fit` on one and two processes.

    Each process has one processor. Each round measures the layers: in one process alone, and in two at once for the
    plans of two. Predicted over measured above 1 means that the step was shorter than predicted. The plan with the
    shortest predicted step is chosen. Its measured step over that of the best plan is the cost of the choice.
    """

    models: Sequence[str] = option((), "Only this one.", choices=MODELS, flags=["--model"])
    microbatches: int = option(4, "Of the pipeline.")
    steps: int = option(8, "Steps per measurement, at least.")
    seconds: float = option(
        2.0,
        "Seconds per measurement, at least, and as long before it; three times as long for layers.",
        minimum=0,
        metavar="X",
    )
    rounds: int = option(8, "Measurements each.")

    def run(self, told: Told = untold) -> "PlanAccuracyReport":
        rows, links = dict[str, dict[str, Row]](), list[Link]()
        found = {
            plan: lanes.Lane(name, workers=workers)
            for plan, name, workers in (
                (_ALONE, "tensorflow", 1),
                (_DATA, "multi-worker", 2),
                (_PIPELINE, "pipeline", 2),
                (_TWO, "tensorflow", 2),
            )
        }
        with machine.observed() as about, lanes.running(found) as call:
            for plan in found:
                told(f"{plan}, {turn(0, self.rounds)}")
                call(plan, "benchmarks.parallel.parallel_networks:bind")
            for model in self.models or MODELS:
                told(f"{model}, {turn(0, self.rounds)}")
                rows[model] = self._rows(model, links, call, told)
        return PlanAccuracyReport(setup=self, link=_middle(links), rows=rows, machine=about)

    def _rows(self, model: str, links: list[Link], call: lanes.Call, told: Told) -> dict[str, "Row"]:
        microbatches = self.microbatches

        def profiled(plan: str) -> list[Profile]:
            how = {"divisors": [2, microbatches], "in_scope": plan == _TWO, "seconds": _PROFILE * self.seconds}
            return [Profile.from_json(text) for text in call(plan, f"{_TRAINING}:measured_profile", name=model, **how)]

        def measured(number: int) -> tuple[Profile, Link]:
            told(f"{model}, profile, {turn(number, self.rounds)}")
            measured_by = call(_DATA, "tfdist.tune.profiling:link_of_worker", many_bytes=16 << 20, seconds=self.seconds)
            links.append(Link(**measured_by[0], is_local=True))
            alone, two = profiled(_ALONE), profiled(_TWO)
            return beside_each_other(two, alone[0]), links[-1]

        first = predicted(*measured(0), microbatches)
        for plan, (_, stages) in first.items():
            call(plan, f"{_TRAINING}:prepare", name=model, plan=plan, stages=stages, microbatches=microbatches)
        seconds: dict[str, list[float]] = {plan: [] for plan in first}
        guessed: dict[str, list[float]] = {plan: [] for plan in first}
        begin = first[_PIPELINE][1] if _PIPELINE in first else None
        for index in range(self.rounds):
            again = predicted(*measured(index + 1), microbatches, begin=begin) if index else first
            for plan, (one, _) in again.items():
                guessed[plan].append(one)
            for plan in rotated(list(first), index):
                told(f"{model}, {plan}, {turn(index + 1, self.rounds)}")
                steps = max(self.steps, round(self.seconds / first[plan][0]))
                took = call(plan, f"{_TRAINING}:measure", name=model, plan=plan, warm_up=steps, steps=steps)
                seconds[plan].append(max(took))
        return {
            plan: Row(predicted=guessed[plan], measured=seconds[plan], stages=stages)
            for plan, (_, stages) in first.items()
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """A plan for a model."""

    predicted: Sequence[float]  # seconds of a step, one per round, by the profile of the same round
    measured: Sequence[float]  # the same, for the slowest process
    stages: tuple[str, ...] | None  # the names of the layers that begin stages 2 to K; None: whole

    @property
    def ratio(self) -> Quartiles:
        """The predicted step over the measured one."""
        return ratio(self.predicted, self.measured)


@dataclass(frozen=True, kw_only=True)
class PlanAccuracyReport(Report):
    """The predicted and the measured steps of each model and plan."""

    setup: PlanAccuracyBench
    link: Link  # between two processes, the median of all rounds
    rows: Mapping[str, Mapping[str, Row]]  # model -> plan -> predicted and measured steps

    def chosen(self, model: str) -> str:
        """Return the plan with the shortest predicted step, by the first profile."""
        return min(self.rows[model], key=lambda plan: self.rows[model][plan].predicted[0])

    def regret(self, model: str) -> Quartiles:
        """Return the step of the chosen plan over that of the best measured plan."""
        rows = self.rows[model]
        best = min(rows, key=lambda plan: median(rows[plan].measured))
        return ratio(rows[self.chosen(model)].measured, rows[best].measured)

    def derived(self) -> dict[str, Any]:
        return {
            "chosen": {model: self.chosen(model) for model in self.rows},
            "regret": {model: self.regret(model) for model in self.rows},
            "predicted_over_measured": {
                model: {plan: row.ratio for plan, row in rows.items()} for model, rows in self.rows.items()
            },
        }

    def shown(self) -> Iterator[Table | str]:
        setup, link = self.setup, self.link
        yield Table(
            ("model", "plan", "predicted, ms", "measured, ms", "predicted / measured", "chosen / best"),
            [
                [
                    *(model, plan),
                    *(f"{1000 * one:.1f}" for one in map(median, (row.predicted, row.measured))),
                    str(row.ratio),
                    str(self.regret(model)) if plan == self.chosen(model) else "",
                ]
                for model, rows in self.rows.items()
                for plan, row in rows.items()
            ],
        )
        yield (
            f"{setup.microbatches} micro-batches; a line of {8e-9 * link.bytes_per_second:.1f} Gbit/s and "
            f"{1e3 * link.latency_seconds:.2f} ms; {setup.rounds} rounds of {setup.steps} steps or more; median "
            f"[lower-upper quartile]; {self.ran_on()}"
        )


def predicted(
    profile: Profile, link: Link, microbatches: int, *, begin: tuple[str, ...] | None = None
) -> dict[str, tuple[float, tuple[str, ...] | None]]:
    """Return for each plan the seconds of a step, and the layers that begin stages, or None for a whole model.

    Without ``begin`` these layers are those of the shortest step.
    """
    one, two = (DeviceKind(count=count) for count in (1, 2))
    whole = Stage(begin=0, end=len(profile.layers))
    single = Setting(profile=profile.for_devices(1), link=link, kinds=(one,), replicas=1)
    double = Setting(profile=profile, link=link, kinds=(two,), replicas=2)
    found: dict[str, tuple[float, tuple[str, ...] | None]] = {
        _ALONE: (predict(single, [whole]).seconds, None),
        _DATA: (predict(double, [dataclasses.replace(whole, devices=2)]).seconds, None),
    }
    staged = Setting(profile=profile, link=link, kinds=(two,), replicas=1, microbatches=microbatches)
    stages = best_stages(staged) if begin is None else _stages_of(profile, begin)
    if stages is not None and len(stages) > 1:
        names = tuple(profile.layers[stage.begin].name for stage in stages[1:])
        found[_PIPELINE] = predict(staged, stages).seconds, names
    return found


def _stages_of(profile: Profile, names: Sequence[str]) -> tuple[Stage, ...]:
    places = [one.name for one in profile.layers]
    cuts = [0, *(places.index(name) for name in names), len(places)]
    return tuple(Stage(begin=begin, end=end) for begin, end in itertools.pairwise(cuts))


def _middle(links: Sequence[Link]) -> Link:
    latency, rate = (median(getattr(one, name) for one in links) for name in ("latency_seconds", "bytes_per_second"))
    return Link(latency_seconds=latency, bytes_per_second=rate, is_local=True)


command = suite_command(
    "plan",
    PlanAccuracyBench,
    examples={
        "python -m benchmarks plan": "four models, three plans: half an hour",
        "python -m benchmarks plan --model dense --model transformer": "two of them",
        "python -m benchmarks plan --model dense --rounds 1 --seconds 0.2": "a glance",
    },
    page="parallel-plan",
)
