"""Predicted steps beside measured ones: each model on one device, data parallel on two, and in two stages.

A model is profiled in one process alone, and in two at once, which share what processors share: caches, memory, the
clock; there in steps of tfdist's, as plans of two have. Of the one, of the other for plans of two processes, and of the
line between two follow how long a step takes by each plan, and which plan is chosen. Profiles, the line and the plans'
steps are measured in turns, since a machine is not as fast at all times. Every process has one processor.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tfdist import validation
from tfdist.bench.workers import lanes
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, ratio
from tfdist.parallel.partition.devices import DeviceKind
from tfdist.parallel.partition.link import MEASURED_BYTES, Link
from tfdist.parallel.partition.profile import Profile, beside_each_other
from tfdist.parallel.partition.search import best_stages
from tfdist.parallel.partition.stages import Setting, Stage
from tfdist.parallel.partition.step_time import predict

__all__ = ["MODELS", "PLANS", "Report", "Row", "Setup", "predicted", "run"]

MODELS = ("dense", "convolutions", "residual", "transformer")
PLANS = ("one device", "data 2", "pipeline 2")
_ALONE, _DATA, _PIPELINE = PLANS
_TWO = "two at once"  # processes that have nothing to do with each other but the machine
_PROFILE = 3.0  # layers are measured for so many times as long as steps


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        models: of `MODELS`.
        microbatches: of the pipeline.
        steps: per measurement, at least.
        seconds: that a measurement is predicted to take, at least, and as long before it, to warm up.
        rounds: measurements of each plan.
    """

    models: Sequence[str] = MODELS
    microbatches: int = 4
    steps: int = 8
    seconds: float = 2.0
    rounds: int = 8

    def __post_init__(self) -> None:
        for name in self.models:
            validation.one_of("a model", name, MODELS)
        for name in ("microbatches", "steps", "rounds"):
            validation.integer(name, getattr(self, name), minimum=1)
        validation.number("seconds", self.seconds, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A plan for a model.

    Attributes:
        predicted: seconds of a step, one per round, by the profile of that round.
        measured: the same; the slowest process's.
        stages: the names of the layers that begin stages 2 to K; None: whole.
    """

    predicted: Sequence[float]
    measured: Sequence[float]
    stages: tuple[str, ...] | None

    @property
    def ratio(self) -> Quartiles:
        """The predicted step over the measured one."""
        return ratio(self.predicted, self.measured)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        setup: what was measured.
        link: between two processes, the middle one of all rounds.
        rows: model -> plan -> what was predicted and measured.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    link: Link
    rows: Mapping[str, Mapping[str, Row]]
    machine: Mapping[str, str]

    def chosen(self, model: str) -> str:
        """Return the plan of the shortest predicted step, by the first profile."""
        return min(self.rows[model], key=lambda plan: self.rows[model][plan].predicted[0])

    def regret(self, model: str) -> Quartiles:
        """Return the step of the plan that is chosen over that of the plan that was measured to be best."""
        rows = self.rows[model]
        best = min(rows, key=lambda plan: median(rows[plan].measured))
        return ratio(rows[self.chosen(model)].measured, rows[best].measured)

    def to_json(self) -> str:
        """Return the report as JSON, with what is chosen and what that costs."""
        derived = {
            "chosen": {model: self.chosen(model) for model in self.rows},
            "regret": {model: asdict(self.regret(model)) for model in self.rows},
            "predicted_over_measured": {
                model: {plan: asdict(row.ratio) for plan, row in rows.items()} for model, rows in self.rows.items()
            },
        }
        return json.dumps({**asdict(self), **derived}, indent=2)


def predicted(
    profile: Profile,
    link: Link,
    microbatches: int,
    *,
    begin: tuple[str, ...] | None = None,
) -> dict[str, tuple[float, tuple[str, ...] | None]]:
    """Return for each plan the seconds of a step, and the layers that begin stages; None: whole.

    Args:
        profile: of the model, in two processes at once, and of one alone.
        link: between two processes.
        microbatches: of the pipeline.
        begin: the layers that begin stages; None: those of the shortest step.
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


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda what, number: None) -> Report:
    """Profile, predict and measure, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each model, plan and round before it is measured; 0: profiling and warming up.
    Raises:
        TfdistError: a process failed; the message has its traceback.

    Example:
        >>> run(Setup(models=["dense"])).regret("dense")                 # doctest: +SKIP
    """
    about, rows = machine.describe(), dict[str, dict[str, Row]]()
    with contextlib.ExitStack() as stack:
        found = {
            plan: stack.enter_context(lanes.Lane(name, workers=workers))
            for plan, name, workers in (
                (_ALONE, "tensorflow", 1),
                (_DATA, "multi-worker", 2),
                (_PIPELINE, "pipeline", 2),
                (_TWO, "tensorflow", 2),
            )
        }

        def call(plan: str, function: str, /, **arguments: Any) -> list[Any]:
            with lanes.turn(found[plan], found.values()) as lane:
                return list(lane.call(f"tfdist.bench.plan.arms:{function}", **arguments))

        for plan in found:
            on_round(plan, 0)
            with lanes.turn(found[plan], found.values()) as lane:
                lane.call("tfdist.bench.workers.processor:bind")
        links: list[Link] = []
        for model in setup.models:
            on_round(model, 0)
            rows[model] = _rows(setup, model, links, call, on_round)
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, link=_middle(links), rows=rows, machine=about)


def _middle(links: Sequence[Link]) -> Link:
    latency, rate = (median(getattr(one, name) for one in links) for name in ("latency_seconds", "bytes_per_second"))
    return Link(latency_seconds=latency, bytes_per_second=rate, is_local=True)


def _rows(
    setup: Setup,
    model: str,
    links: list[Link],
    call: Callable[..., list[Any]],
    on_round: Callable[[str, int], None],
) -> dict[str, Row]:
    microbatches = setup.microbatches

    def measured(number: int) -> tuple[Profile, Link]:
        on_round(f"{model}, profile", number)
        times = call(_DATA, "line", sizes=MEASURED_BYTES, seconds=setup.seconds)
        few, many = (max(pair) for pair in zip(*times, strict=True))
        links.append(Link.of_all_reduces((MEASURED_BYTES[0], few), (MEASURED_BYTES[1], many)))
        found = {
            plan: [
                Profile.from_json(text)
                for text in call(
                    plan,
                    "measured_profile",
                    name=model,
                    divisors=[2, microbatches],
                    in_scope=plan == _TWO,
                    seconds=_PROFILE * setup.seconds,
                )
            ]
            for plan in (_ALONE, _TWO)
        }
        return beside_each_other(found[_TWO], found[_ALONE][0]), links[-1]

    first = predicted(*measured(0), microbatches)
    for plan, (_, stages) in first.items():
        call(plan, "prepare", name=model, plan=plan, stages=stages, microbatches=microbatches)
    seconds: dict[str, list[float]] = {plan: [] for plan in first}
    guessed: dict[str, list[float]] = {plan: [] for plan in first}
    order, begin = list(first), first[_PIPELINE][1] if _PIPELINE in first else None
    for number in range(setup.rounds):
        again = predicted(*measured(number + 1), microbatches, begin=begin) if number else first
        for plan, (one, _) in again.items():
            guessed[plan].append(one)
        for plan in order[number % len(order) :] + order[: number % len(order)]:
            on_round(f"{model}, {plan}", number + 1)
            steps = max(setup.steps, round(setup.seconds / first[plan][0]))
            seconds[plan].append(max(call(plan, "measure", name=model, plan=plan, warm_up=steps, steps=steps)))
    return {
        plan: Row(predicted=guessed[plan], measured=seconds[plan], stages=stages) for plan, (_, stages) in first.items()
    }
