"""The plans for a model on some devices: data parallelism, pipelines, and both. Loads no TensorFlow."""

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdist import validation
from tfdist.cluster import strategy_table
from tfdist.planner import stage_search, step_time
from tfdist.planner.device_kinds import DeviceKind, require_names
from tfdist.planner.layer_profile import Profile
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import SCHEDULES, Memory, Setting, Stage
from tfdist.planner.step_time import Prediction
from tfdist.variables import LAYOUTS, MICROBATCHES, SCHEDULE, STAGES

_PIPELINE = "pipeline"
_MOST_MICROBATCHES = 32  # that are tried


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan: one way to divide a model.

    Attributes:
        name: the name, in words.
        strategy: the registered name of the strategy that runs the plan; "" for one process without a strategy; None if
            no strategy runs it.
        mesh: the mesh of the strategy, or "".
        devices: the number of devices, each with one process.
        schedule: the schedule of the pipeline, or "".
        microbatches: the number of micro-batches of each pipeline.
        stages: the stages, in order.
        layers: the names of the layers that begin stages 2 to K.
        in_parts: the names of the layers whose weights are cut along the axis "model" of the mesh.
        prediction: the prediction of a step.
        price: the price of the devices for the time of a step, in the currency of their kinds.
        fits: whether each device has enough memory.
    """

    name: str
    strategy: str | None
    mesh: str
    devices: int
    schedule: str
    microbatches: int
    stages: tuple[Stage, ...]
    layers: tuple[str, ...]
    in_parts: tuple[str, ...] = ()
    prediction: Prediction
    price: float
    fits: bool

    @property
    def memory(self) -> Memory:
        """The memory of the device that needs most."""
        return max(self.prediction.memory, key=lambda one: one.total)

    def command(self, script: Sequence[str]) -> str:
        """Return the shell command that runs the plan; "" if no strategy runs it."""
        if self.strategy is None:
            return ""
        if not self.strategy:
            return shlex.join(["python", *script])
        mesh = ["--mesh", self.mesh] if self.mesh else []
        given = {
            STAGES.name: ",".join(self.layers),
            SCHEDULE.name: self.schedule,
            MICROBATCHES.name: str(self.microbatches),
            **({LAYOUTS.name: self._layouts} if self.in_parts else {}),
        }
        variables = [f"{name}={shlex.quote(value)}" for name, value in given.items()] if self.layers else []
        words = ["tfdist", "run", "--strategy", self.strategy, "-n", str(self.devices), *mesh, *script]
        return " ".join([*variables, shlex.join(words)])

    def code(self) -> str:
        """Return the arguments that give a pipeline in a script these stages; "" if the plan is not a pipeline."""
        parts = f", layout_map={self._layouts!r}" if self.in_parts else ""
        return f"stages={self.layers!r}{parts}" if self.mesh else ""

    @property
    def _layouts(self) -> str:
        return strategy_table.AUTO_OF + ",".join(self.in_parts)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The plans for a model, the best first, those that do not fit at the end.

    Attributes:
        profile: the profile of the model.
        link: the link between devices.
        kinds: the kinds of devices.
        objective: the objective, "time" or "price".
        plans: the plans; there is at least one.
    """

    profile: Profile
    link: Link
    kinds: tuple[DeviceKind, ...]
    objective: str
    plans: tuple[Plan, ...]

    @property
    def best(self) -> Plan | None:
        """The best plan that fits and that a strategy runs; for devices of several kinds, the best that fits."""
        fitting = [one for one in self.plans if one.fits]
        return next((one for one in fitting if one.strategy is not None), fitting[0] if fitting else None)

    def verdict(self) -> str:
        """Return the finding in a sentence."""
        best = self.best
        if best is None:
            least = min(self.plans, key=lambda one: one.memory.total)
            most = max(one.memory_bytes for one in self.kinds)
            term = least.memory.largest
            return (
                f"nothing fits into {shown_bytes(most)} on a device: {least.name} needs least, "
                f"{shown_bytes(least.memory.total)}, most of it for {term} "
                f"({shown_bytes(getattr(least.memory, term))}). {_CURES[term]}"
            )
        part = getattr(best.prediction, best.prediction.dominant) / best.prediction.seconds
        return (
            f"best: {best.name}, {1e3 * best.prediction.seconds:.3g} ms for a step of {self.profile.batch:,} examples, "
            f"{part:.0%} of it for {best.prediction.dominant}"
        )

    def to_json(self) -> str:
        """Return the plans as JSON for programs."""
        kinds = [
            {**dataclasses.asdict(one), "memory_bytes": one.memory_bytes if one.memory_bytes < math.inf else None}
            for one in self.kinds
        ]
        plans = []
        for one in self.plans:
            stages = [
                {
                    "first": self.profile.layers[stage.begin].name,
                    "last": self.profile.layers[stage.end - 1].name,
                    "devices": stage.devices,
                    "kind": self.kinds[stage.kind].name,
                    "memory_bytes": round(memory.total),
                }
                for stage, memory in zip(one.stages, one.prediction.memory, strict=True)
            ]
            told = {"bubble_part": one.prediction.bubble_part, "dominant": one.prediction.dominant}
            rest = {key: value for key, value in dataclasses.asdict(one).items() if key != "stages"}
            plans.append({**rest, "stages": stages, **told})
        found = {
            "version": 1,
            "model": self.profile.model,
            "batch": self.profile.batch,
            "measured_at_once": self.profile.processes,
            "link": dataclasses.asdict(self.link),
            "kinds": kinds,
            "objective": self.objective,
            "best": None if self.best is None else self.plans.index(self.best),
            "plans": plans,
            "verdict": self.verdict(),
            "coverage": self.profile.coverage,
            "machine": self.profile.machine,
        }
        return json.dumps(found, indent=2)


_CURES = {
    "weights": "Give more devices, or layers with fewer weights.",
    "gradients": "Give more devices, or layers with fewer weights.",
    "optimizer": "Give more devices, or an optimizer with fewer slots, such as SGD.",
    "activations": "Give a smaller batch, more micro-batches, or more devices.",
}


def plans(
    profile: Profile,
    kinds: Sequence[DeviceKind],
    link: Link,
    *,
    schedule: str = "1f1b",
    microbatches: int | None = None,
    objective: str = "time",
) -> Report:
    """Return the plans for a model on some devices, each with its best stages.

    For devices that are alike, the plans are: one device; data parallelism; data parallelism with the optimizer's slots
        in parts; and every pipeline whose stages have the same number of devices. Where weights in parts make a
        micro-batch faster or fit, pipelines with 2, 4, 8, ... devices of a stage along a model axis are added. If the
        best pipeline has stages with different numbers of devices, it is added, too. For devices of several kinds, the
        plans are the best use of all and the best use of some.

    Args:
        profile: the profile of the model.
        kinds: the kinds of devices.
        link: the link between any two devices.
        schedule: the schedule, one of `tfdist.planner.stage_cost.SCHEDULES`.
        microbatches: the number of micro-batches of each pipeline in a step; None tries the powers of two that divide
            the batch.
        objective: the objective, "time" or "price".
    Raises:
        ConfigError: an argument is not allowed, or the batch has fewer examples than there are micro-batches.

    Example:
        >>> from tfdist.planner.layer_profile import LayerProfile
        >>> layers = tuple(LayerProfile(name=n, forward_seconds=(1.0,), backward_seconds=(2.0,)) for n in "abcd")
        >>> profile = Profile(model="m", batch=8, batch_sizes=(8,), layers=layers, whole_seconds=(12.0,))
        >>> report = plans(profile, [DeviceKind(count=2)], Link.parse("1gbit"), microbatches=4)
        >>> [(one.name, round(one.prediction.seconds, 2)) for one in report.plans[:3]]
        [('data 2', 6.0), ('data 2, sharded optimizer', 6.0), ('pipeline 2', 7.5)]
    """
    found = require_names(kinds)
    validation.one_of("schedule", schedule, SCHEDULES)
    validation.one_of("objective", objective, stage_search.OBJECTIVES)
    if microbatches is not None:
        hint = f"The batch has {profile.batch} examples."
        validation.integer("microbatches", microbatches, minimum=1, maximum=profile.batch, hint=hint)
    maker = _Maker(profile, found, link, schedule, microbatches, objective)
    made = list(maker.of_alike() if len(found) == 1 else maker.of_unlike())
    cost = {"time": lambda one: one.prediction.seconds, "price": lambda one: one.price}[objective]
    made.sort(key=lambda one: (not one.fits, cost(one), one.devices, one.name))
    return Report(profile=profile, link=link, kinds=found, objective=objective, plans=tuple(made))


@dataclass(frozen=True)
class _Maker:
    profile: Profile
    kinds: tuple[DeviceKind, ...]
    link: Link
    schedule: str
    microbatches: int | None
    objective: str

    def of_alike(self) -> Iterator[Plan]:
        devices = self.kinds[0].count
        yield self._whole("one device", "", 1)
        if devices == 1:
            return
        yield self._whole(f"data {devices}", "multi-worker", devices)
        yield self._whole(f"data {devices}, sharded optimizer", "sharded-data-parallel", devices, shards=devices)
        best: Plan | None = None
        for stages in range(2, min(devices, len(self._setting(1, 1).begins())) + 1):
            if devices % stages == 0:
                one = self._pipeline(devices // stages)
                yield one
                yield from self._with_parts(devices // stages)
                if best is None or one.prediction.seconds < best.prediction.seconds:
                    best = one
        count = self._counts(1)[-1] if best is None else best.microbatches * (devices // len(best.stages))
        other = self._uneven(count)
        if other is not None and len({stage.devices for stage in other.stages}) > 1:
            yield other

    def _with_parts(self, devices: int) -> Iterator[Plan]:
        """Yield the pipelines with several of a stage's devices along a model axis."""
        parts = 2
        while devices % parts == 0:
            one = self._pipeline(devices // parts, parts)
            if not one.fits:
                one = self._pipeline(devices // parts, parts, saves_memory=True)
            if one.in_parts:
                yield one
            parts *= 2

    def of_unlike(self) -> Iterator[Plan]:
        seen = set()
        for uses_all, name in ((True, "all devices"), (False, "some devices")):
            found = [one for count in self._counts(1) if (one := self._uneven(count, uses_all, name)) is not None]
            if not uses_all:  # the search takes the times of devices that compute at once
                found += [self._lone(f"{name}: 1 {kind.name}", index) for index, kind in enumerate(self.kinds)]
            found = [one for one in found if one.fits] or found
            if found:
                best = min(found, key=lambda one: one.price if self.objective == "price" else one.prediction.seconds)
                if best.stages not in seen:
                    seen.add(best.stages)
                    yield best

    def _setting(self, microbatches: int, replicas: int | None, shards: int = 1) -> Setting:
        return Setting(
            profile=self.profile,
            link=self.link,
            kinds=self.kinds,
            schedule=self.schedule,
            microbatches=microbatches,
            replicas=replicas,
            shards=shards,
        )

    def _counts(self, replicas: int) -> list[int]:
        if self.microbatches is not None:
            return [self.microbatches]
        share, powers = self.profile.batch / replicas, [2**power for power in range(6)]
        whole = [count for count in powers if count <= _MOST_MICROBATCHES and share % count == 0]
        return whole or [1]

    def _whole(self, name: str, strategy: str, devices: int, shards: int = 1) -> Plan:
        kind = dataclasses.replace(self.kinds[0], count=devices)
        profile = self.profile.for_devices(devices)
        setting = dataclasses.replace(
            self._setting(1, devices, shards), profile=profile, kinds=(kind,), schedule="1f1b"
        )
        return self._plan(setting, (Stage(begin=0, end=len(self.profile.layers), devices=devices),), name, strategy)

    def _lone(self, name: str, kind: int) -> Plan:
        setting = dataclasses.replace(self._setting(1, 1), profile=self.profile.for_devices(1), schedule="1f1b")
        return self._plan(setting, (Stage(begin=0, end=len(self.profile.layers), devices=1, kind=kind),), name, None)

    def _pipeline(self, replicas: int, parts: int = 1, saves_memory: bool = False) -> Plan:
        """Return the best pipeline whose stages have this many devices each, preferably one that fits into memory."""
        kind = dataclasses.replace(self.kinds[0], count=self.kinds[0].count // parts)
        found = []
        for limits in (True, False):
            for count in self._counts(replicas):
                setting = dataclasses.replace(
                    self._setting(count, replicas), kinds=(kind,), parts=parts, saves_memory=saves_memory
                )
                stages = stage_search.best_stages(setting, objective=self.objective, limits_memory=limits)
                if stages is not None:
                    found.append((setting, stages))
            if found:
                break
        setting, stages = min(found, key=lambda pair: stage_search.cost(pair[0], pair[1], self.objective))
        name = " x ".join(f"{axis} {size}" for axis, size in _axes(setting, stages))
        return self._plan(setting, stages, name, _PIPELINE if setting.flushes else None)

    def _uneven(self, microbatches: int, uses_all: bool = True, name: str = "pipeline") -> Plan | None:
        setting = self._setting(min(microbatches, self.profile.batch), None)
        for limits in (True, False):
            stages = stage_search.best_stages(
                setting, objective=self.objective, limits_memory=limits, uses_all=uses_all
            )
            if stages is not None:
                shape = " + ".join(f"{one.devices} {self.kinds[one.kind].name}" for one in stages)
                return self._plan(setting, stages, f"{name}: {shape}", None)
        return None

    def _plan(self, setting: Setting, stages: tuple[Stage, ...], name: str, strategy: str | None) -> Plan:
        found = step_time.predict(setting, stages)
        layers = self.profile.layers
        laid = [(layers[one.begin : one.end], setting.in_parts(one)) for one in stages] if setting.parts > 1 else []
        kinds = [setting.kinds[one.kind] for one in stages]
        limits = zip(found.memory, kinds, strict=True)
        return Plan(
            name=name,
            strategy=strategy,
            mesh=",".join(f"{axis}={size}" for axis, size in _axes(setting, stages)) if strategy == _PIPELINE else "",
            devices=sum(one.devices for one in stages) * setting.parts,
            schedule=self.schedule if len(stages) > 1 else "",
            microbatches=setting.microbatches,
            stages=stages,
            layers=tuple(layers[one.begin].name for one in stages[1:]),
            in_parts=tuple(
                layer.name.rpartition("/")[2]  # which the paths of its weights have; they begin with no model's name
                for own, chosen in laid
                for layer, is_cut in zip(own, chosen, strict=True)
                if is_cut
            ),
            prediction=found,
            price=stage_search.cost(setting, stages, "price") * setting.parts,
            fits=all(memory.total <= kind.memory_bytes for memory, kind in limits),
        )


def _axes(setting: Setting, stages: Sequence[Stage]) -> list[tuple[str, int]]:
    """Return the axes of a pipeline's mesh, without those of one device, and their sizes."""
    sizes = {"data": setting.replicas or 1, "pipeline": len(stages), "model": setting.parts}
    return [(axis, size) for axis, size in sizes.items() if size > 1 or axis == "pipeline"]


def shown_bytes(size: float) -> str:
    """Format bytes in the unit that fits, in powers of 1024."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.{3 if size < 1000 * factor else 4}g} {unit}"
    return f"{size:.0f} bytes"
