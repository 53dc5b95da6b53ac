"""The cost of a stage of consecutive layers, as a pure function. Loads no TensorFlow.

Where the mesh has a model axis, the layers of a stage that are cut along it are chosen for the shortest micro-batch, by
HyPar's rule: all processes along the axis have the same rows, and a layer has all of its weights on each of them, or a
part. Two adjacent layers cut by columns and by rows exchange nothing between them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tfdist import validation
from tfdist.planner.bucket_filling import BUCKET_BYTES, filled_bytes
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.planner_link import Link

#: the schedules whose time and memory are known
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe", "pipedream")


#: layers whose processes have summands of the result, by themselves: heads, rows of a table
_SUMMING = ("Embedding", "MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The seconds of a layer for a micro-batch, whole and in parts; `part` is None if it cannot be cut."""

    whole: float
    part: float | None = None
    entering: float = 0.0  # the time of reducing the gradients of its inputs
    leaving: float = 0.0  # the time of gathering its result
    summing: float = 0.0  # the time of reducing partial results
    has_summands: bool = False  # whether the layer by itself ends in partial results
    joins: bool = False  # whether the layer can take the result of the layer before in parts


def costs(layers: Sequence[LayerProfile], times: Sequence[float], parts: int, link: Link, rows: float) -> list[Costs]:
    found = []
    for one, time in zip(layers, times, strict=True):
        can = parts > 1 and one.divides > 0 and one.divides % parts == 0
        taken = sum(layers[source].gradient_bytes for source in one.inputs) * rows
        result = one.output_bytes * rows
        found.append(
            Costs(
                whole=time,
                part=time / parts if can else None,
                entering=link.all_reduce_seconds(taken, parts),
                leaving=link.gathering(result, parts).seconds,
                summing=link.all_reduce_seconds(result, parts),
                has_summands=one.kind in _SUMMING,
                joins=one.joins,
            )
        )
    return found


def _step(before: Costs | None, one: Costs, in_parts: bool) -> tuple[float, Costs | None]:
    """Return the seconds that a layer adds, and the layer if it leaves its result in parts."""
    gathered = 0.0 if before is None else before.leaving
    if not in_parts or one.part is None:
        return gathered + one.whole, None
    if before is not None and one.joins:
        return one.part + one.summing, None
    if one.has_summands:
        return gathered + one.entering + one.part + one.summing, None
    return gathered + one.entering + one.part, one


def seconds_of(given: Sequence[Costs], choices: Sequence[bool]) -> float:
    """Return the seconds of a stage whose layers are cut or whole; at its end everything is whole."""
    total, open_ = 0.0, None
    for one, in_parts in zip(given, choices, strict=True):
        adds, open_ = _step(open_, one, in_parts)
        total += adds
    return total + (0.0 if open_ is None else open_.leaving)


def least(given: Sequence[Costs]) -> list[tuple[bool, ...]]:
    """Choose the layers to cut for the least time, for a stage of the first layer, of the first two, and so on.

    It is dynamic programming; ties go to the fewest and last layers.

    Source: L. Song et al., "HyPar: Towards Hybrid Parallelism for Deep Learning Accelerator Array", 2019. HyPar
        minimizes bytes for halves of the devices; computing counts here as well.
    """
    best: dict[bool, tuple[float, int, tuple[bool, ...], Costs | None]] = {False: (0.0, 0, (), None)}
    found = []
    for one in given:
        now: dict[bool, tuple[float, int, tuple[bool, ...], Costs | None]] = {}
        for total, count, chosen, open_ in best.values():
            for in_parts in (False, True) if one.part is not None else (False,):
                adds, left = _step(open_, one, in_parts)
                reached = (total + adds, count + in_parts, (*chosen, in_parts), left)
                is_open = left is not None
                if is_open not in now or reached[:3] < now[is_open][:3]:
                    now[is_open] = reached
        best = now
        ends = [
            (total + (0.0 if left is None else left.leaving), count, chosen)
            for total, count, chosen, left in best.values()
        ]
        found.append(min(ends)[2])
    return found


class _Laid(NamedTuple):
    """The layers of a stage that are in parts, the seconds of a micro-batch, and the bytes of weights on a device."""

    in_parts: tuple[bool, ...]
    seconds: float
    held_bytes: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage: consecutive layers on devices of one kind, which share the micro-batches.

    Attributes:
        begin, end: the index of the first layer, and that after the last layer.
        devices: the number of devices with these layers.
        kind: the index of their kind in `Setting.kinds`.
    """

    begin: int
    end: int
    devices: int = 1
    kind: int = 0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a device of a stage, in bytes.

    Attributes:
        weights: the weights, with the versions that PipeDream keeps.
        gradients: the gradients of all trainable weights.
        optimizer: the optimizer's slots.
        activations: the activations and inputs of all micro-batches that are under way there.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def largest(self) -> str:
        """The name of the largest term."""
        return max(("weights", "gradients", "optimizer", "activations"), key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The job and the devices that stages are made for.

    Attributes:
        profile: the profile of the model.
        link: the link between devices.
        kinds: the kinds of devices.
        schedule: one of `SCHEDULES`.
        microbatches: the number of micro-batches in a step: of each pipeline if ``replicas`` is given, else of all
            together.
        replicas: the number of devices of every stage, and so of pipelines side by side, each with a share of the
            batch. None: stages may have different numbers of devices, which take turns with the micro-batches.
        shards: the number of devices over which the optimizer's slots are divided.
        parts: the size of the model axis: the number of devices that act as one, with the same rows and parts of the
            weights.
        saves_memory: whether every layer that can be cut is cut, not only those that make a micro-batch faster.
    """

    profile: Profile
    link: Link
    kinds: tuple[DeviceKind, ...]
    schedule: str = "1f1b"
    microbatches: int = 1
    replicas: int | None = None
    shards: int = 1
    parts: int = 1
    saves_memory: bool = False

    def __post_init__(self) -> None:
        validation.one_of("schedule", self.schedule, SCHEDULES)
        validation.integer("microbatches", self.microbatches, minimum=1)
        validation.integer("parts", self.parts, minimum=1)

    @property
    def flushes(self) -> bool:
        """Whether weights are updated once in a step, when the pipeline is empty."""
        return self.schedule != "pipedream"

    @property
    def microbatch(self) -> float:
        """The number of examples in a micro-batch."""
        return self.profile.batch / (self.microbatches * (self.replicas or 1))

    @cached_property
    def _forward(self) -> list[float]:
        return _sums([one for one, _ in self._seconds])

    @cached_property
    def _backward(self) -> list[float]:
        return _sums([one for _, one in self._seconds])

    @cached_property
    def _seconds(self) -> list[tuple[float, float]]:
        return self.profile.seconds(self.microbatch)

    @property
    def _alone(self) -> Profile:
        alone = self.profile.alone if self.parts == 1 and self.replicas in (None, 1) else None
        return alone or self.profile

    @cached_property
    def _of_first(self) -> list[float]:
        """The running sums of the layers' times for the first micro-batch, for which the others wait."""
        return _sums([sum(pair) for pair in self._alone.seconds(self.microbatch)])

    @cached_property
    def _laid_from(self) -> dict[tuple[int, int], list[_Laid]]:
        """Stages by their kind and first layer; in each list by their number of layers, from 1 on."""
        return {}

    def in_parts(self, stage: Stage) -> tuple[bool, ...]:
        """Return whether the weights of each layer of a stage are in parts."""
        return self._laid(stage).in_parts

    def _laid(self, stage: Stage) -> _Laid:
        place = stage.kind, stage.begin
        if place not in self._laid_from:
            given, layers = self._costs[stage.kind][stage.begin :], self.profile.layers[stage.begin :]
            cut = tuple(one.part is not None for one in given)
            choices = [cut[:count] for count in range(1, len(cut) + 1)] if self.saves_memory else least(given)
            found = self._laid_from[place] = []
            for chosen in choices:
                held = sum(
                    one.parameter_bytes / (self.parts if in_parts else 1)
                    for one, in_parts in zip(layers, chosen, strict=False)
                )
                found.append(_Laid(chosen, seconds_of(given[: len(chosen)], chosen), held))
        return self._laid_from[place][stage.end - stage.begin - 1]

    @cached_property
    def _costs(self) -> list[list[Costs]]:
        """The costs of the layers on each kind of devices."""
        found = []
        for kind in self.kinds:
            times = [sum(one) / kind.speed for one in self._seconds]
            found.append(costs(self.profile.layers, times, self.parts, self.link, self.microbatch))
        return found

    def held_bytes(self, stage: Stage) -> float:
        """Return the bytes of weights that a device of a stage has."""
        if self.parts == 1:
            return self._parameters[stage.end] - self._parameters[stage.begin]
        return self._laid(stage).held_bytes

    @cached_property
    def _parameters(self) -> list[float]:
        return _sums([one.parameter_bytes for one in self.profile.layers])

    @cached_property
    def _states(self) -> list[float]:
        return _sums([one.state_bytes for one in self.profile.layers])

    @cached_property
    def _kept(self) -> list[float]:
        return _sums([one.kept_bytes for one in self.profile.layers])

    @cached_property
    def crossing(self) -> list[tuple[float, float]]:
        """The bytes of an example that cross each place to later layers, and those of gradients that come back.

        Every tensor counts that is made before the place and used after it, also one that skips a stage.
        """
        layers = self.profile.layers
        last = list(range(len(layers)))
        for place, one in enumerate(layers):
            for source in one.inputs:
                last[source] = max(last[source], place)
        found = [(0.0, 0.0)]
        for cut in range(1, len(layers)):
            over = [layers[source] for source in range(cut) if last[source] >= cut]
            found.append((sum(one.output_bytes for one in over), sum(one.gradient_bytes for one in over)))
        return found

    def begins(self) -> list[int]:
        """Return the indexes of the layers at which a stage may begin."""
        return [0, *(place for place, one in enumerate(self.profile.layers) if place and one.may_begin_stage)]

    def compute_seconds(self, stage: Stage) -> float:
        """Return the seconds of a micro-batch on a device, forward and backward."""
        if self.parts > 1:
            return self._laid(stage).seconds
        forward = self._forward[stage.end] - self._forward[stage.begin]
        backward = self._backward[stage.end] - self._backward[stage.begin]
        return (forward + backward) / self.kinds[stage.kind].speed

    def first_seconds(self, stage: Stage) -> float:
        """Return the seconds of the first micro-batch on a device, while other stages wait for it.

        During it, one process of a host has the processors to itself. So if processes were measured at once and alone,
        the measurement alone counts.
        """
        if self.parts > 1:
            return self.compute_seconds(stage)
        return (self._of_first[stage.end] - self._of_first[stage.begin]) / self.kinds[stage.kind].speed

    def passing_before(self, place: int) -> float:
        """Return the least seconds of a micro-batch through all layers before a place, at a speed of 1."""
        return self._of_first[place] / self.parts

    def sending_seconds(self, begin: int) -> tuple[float, float]:
        """Return the seconds of sending a micro-batch to a stage, and of sending its gradients back."""
        there, back = self.crossing[begin] if begin else (0.0, 0.0)
        return self.link.send_seconds(there * self.microbatch), self.link.send_seconds(back * self.microbatch)

    def line_seconds(self, begin: int) -> float:
        """Return the seconds in which a micro-batch, or its gradients, occupy the link before a stage."""
        return max(self.crossing[begin]) * self.microbatch / self.link.bytes_per_second if begin else 0.0

    def reduction_seconds(self, stage: Stage) -> float:
        """Return the seconds of reducing gradients between the devices of a stage that nothing hides.

        Without micro-batches, gradients are sent during the backward pass, except those of the last layer. With
        micro-batches, they are sent only during the backward pass of the last one. Nothing is hidden between processes
        of one host. A sharded optimizer reduces to parts, and gathers new weights bucket by bucket after its update.
        """
        size, link = self.held_bytes(stage), self.link
        needed = link.all_reduce_seconds(size, stage.devices)
        if link.is_local or not needed:
            return needed
        backward = (self._backward[stage.end] - self._backward[stage.begin]) / self.kinds[stage.kind].speed / self.parts
        layers = self.profile.layers[stage.begin : stage.end]
        first = next((one.parameter_bytes for one in layers if one.parameter_bytes), 0)  # ready when nothing is left
        if self.shards == 1:
            return max(needed - backward, link.all_reduce_seconds(first, stage.devices))
        buckets = filled_bytes({place: one.parameter_bytes for place, one in enumerate(layers)}, BUCKET_BYTES)
        gathered = math.fsum(link.gathering(one, stage.devices).seconds for _, one in buckets)
        reduced = [link.scattering(one, stage.devices).seconds for one in (size, first)]
        return max(reduced[0] - backward, reduced[1]) + gathered

    def fixed_seconds(self, stages: int) -> float:
        """Return the fixed seconds of a step with this many stages.

        If gradients are reduced, they are those of tfdist's step. A pipeline has no more than those of Keras' own step,
        which is measured alone.
        """
        return (self.profile if stages == 1 else self._alone).fixed_seconds

    def update_seconds(self, stage: Stage) -> float:
        """Return the seconds of the optimizer on a device of a stage."""
        return self.profile.update_seconds * self._held(stage) / self.shards / self.kinds[stage.kind].speed

    def adding_seconds(self, stage: Stage) -> float:
        """Return the seconds of adding a micro-batch's gradients to those of earlier ones."""
        if not self.flushes or self.microbatches == 1:
            return 0.0
        return self.profile.adding_seconds * self._held(stage) / self.kinds[stage.kind].speed

    def _held(self, stage: Stage) -> float:
        whole = self.profile.parameter_bytes
        return self.held_bytes(stage) / whole if whole else 0.0

    def under_way(self, stage: Stage, devices_from_here: int) -> int:
        """Return the number of micro-batches whose activations a device of a stage keeps.

        Args:
            stage: the stage.
            devices_from_here: the number of devices of this stage and of later ones.
        """
        share = math.ceil(self.microbatches / taking_turns(self, stage))
        ahead = math.ceil(devices_from_here / stage.devices)
        if self.schedule == "gpipe":
            return share
        if self.schedule == "eager-1f1b":
            return min(share, 2 * ahead - 1)
        return min(share, ahead) if self.flushes else ahead

    def most_under_way(self, stage: Stage) -> float:
        """Return the number of micro-batches that a device of a stage has memory for; below 0 if weights do not fit."""
        free = self.kinds[stage.kind].memory_bytes
        if free == math.inf:
            return math.inf
        none = self._memory(stage, 0).total
        if each := self._memory(stage, 1).total - none:
            return math.floor((free - none) / each * (1 + 1e-12))
        return math.inf if free >= none else -math.inf

    def memory(self, stage: Stage, devices_from_here: int) -> Memory:
        """Return the memory of a device of a stage, given the number of devices of this stage and of later ones."""
        return self._memory(stage, self.under_way(stage, devices_from_here))

    def _memory(self, stage: Stage, live: int) -> Memory:
        weights = self.held_bytes(stage)
        states = self._states[stage.end] - self._states[stage.begin]
        whole = self.profile.parameter_bytes
        slots = self.profile.slot_bytes * (weights / whole if whole else 0.0) / self.shards
        comes_in = self.crossing[stage.begin][0] if stage.begin else 0.0
        kept = (self._kept[stage.end] - self._kept[stage.begin] + comes_in) * self.microbatch
        versions = 1 if self.flushes else live
        return Memory(weights=weights * versions + states, gradients=weights, optimizer=slots, activations=kept * live)


def taking_turns(setting: Setting, stage: Stage) -> int:
    """Return the number of devices of a stage among which the micro-batches of a pipeline are divided."""
    return 1 if setting.replicas else stage.devices


def _sums(values: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(values, initial=0.0))
