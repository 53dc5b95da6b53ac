"""The prediction of the step time of given stages, with its terms. Loads no TensorFlow.

With a flush, the first micro-batch goes through all stages, the others follow at the pace of the slowest, and then
gradients are added up and weights updated:

    step = sum_s (f_s + x_s) + (M - 1) max_s max(c_s + a_s, x_s) + max_s (r_s + u_s)

c_s: the forward and backward pass of a micro-batch in stage s; f_s: the same for the first micro-batch, when one
process of a host has it to itself, else as c_s; a_s: the addition of its gradients to those of earlier ones; x_s:
sending to the stage and back; r_s: the part of the reduction that nothing hides; u_s: the update. If stages are alike,
the first two terms are (M + K - 1) c, except for a and f. Without a flush (PipeDream) a step of M micro-batches is M
times the slowest of c_s + u_s, x_s and r_s.

The pace has only the time in which x_s occupies the link, not its latency. Latencies delay a stage that has as many
micro-batches under way as its schedule allows, until the first of them comes back: `waiting_for_returns`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.planner.stage_cost import Memory, Setting, Stage, taking_turns


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The contribution of a stage to a step, in seconds."""

    pace: float  # the time between two micro-batches
    passing: float  # the time of the first micro-batch in the stage and on the way to it
    end: float  # the time after the last micro-batch


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction of a step with given stages, in seconds of each term.

    Attributes:
        seconds: the time of the step: the sum of the five terms and the fixed time.
        compute: the computing time of the stage that computes longest, including the addition of gradients.
        bubble: the time in which that stage waits for others.
        communication: the communication between stages that nothing hides.
        reduction: the reduction of gradients between the devices of a stage that nothing hides.
        update: the optimizer's update.
        fixed: the rest of a step.
        memory: the memory of a device of each stage.
    """

    seconds: float
    compute: float
    bubble: float
    communication: float
    reduction: float
    update: float
    fixed: float
    memory: tuple[Memory, ...]

    @property
    def bubble_part(self) -> float:
        """The bubble as a part of the time of computing and waiting; (K - 1) / (M + K - 1) if stages are alike."""
        return self.bubble / (self.compute + self.bubble) if self.compute else 0.0

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        names = ("compute", "bubble", "communication", "reduction", "update", "fixed")
        return max(names, key=lambda name: float(getattr(self, name)))


def parts(setting: Setting, stage: Stage) -> Parts:
    turns = taking_turns(setting, stage)
    compute, first = setting.compute_seconds(stage), setting.first_seconds(stage)
    reduction, update = setting.reduction_seconds(stage), setting.update_seconds(stage)
    line, way = setting.line_seconds(stage.begin), math.fsum(setting.sending_seconds(stage.begin))
    if setting.link.is_local:  # the processors that compute also copy
        compute, first, line, way = compute + way, first + way, 0.0, 0.0
    if setting.flushes:
        adding = setting.adding_seconds(stage)
        return Parts(pace=max((compute + adding) / turns, line), passing=first + way, end=reduction + update)
    return Parts(pace=max((compute + update) / turns, line, reduction), passing=0.0, end=0.0)


def step_seconds(setting: Setting, found: Sequence[Parts]) -> float:
    turns = setting.microbatches - 1 if setting.flushes else setting.microbatches
    return turns * max(one.pace for one in found) + sum(one.passing for one in found) + max(one.end for one in found)


def waiting_for_returns(setting: Setting, stages: Sequence[Stage]) -> float:
    """Return the seconds that latencies add to the pace of micro-batches.

    A stage begins a micro-batch when the one that is w places before it has come back, after R: w is the number of
    micro-batches that its schedule lets be under way from it on. So M micro-batches take at least k R and M - 1 - k w
    times the pace, with the largest k. Without a flush they never stop, and the pace is at least R / w.
    """
    if setting.link.is_local:
        return 0.0
    pace, behind, most = max(parts(setting, one).pace for one in stages), 0.0, 0.0
    devices, turns = 0, setting.microbatches - 1 if setting.flushes else setting.microbatches
    for stage in reversed(stages):
        devices += stage.devices
        back = behind + setting.compute_seconds(stage) + (setting.adding_seconds(stage) if setting.flushes else 0.0)
        room = setting.under_way(stage, devices) * taking_turns(setting, stage)
        often = turns // room if setting.flushes else turns / room
        most = max(most, often * back + (turns - often * room) * pace)
        behind = back + math.fsum(setting.sending_seconds(stage.begin))
    return max(most - turns * pace, 0.0)


def predict(setting: Setting, stages: Sequence[Stage]) -> Prediction:
    """Return the time of a step with these stages, term by term.

    Args:
        setting: the job and the devices.
        stages: the stages, in order; together they have all layers.

    Example:
        >>> from tfdist.planner.device_kinds import DeviceKind
        >>> from tfdist.planner.planner_link import Link
        >>> from tfdist.planner.layer_profile import LayerProfile, Profile
        >>> layers = tuple(LayerProfile(name=n, forward_seconds=(1.0,), backward_seconds=(2.0,)) for n in "ab")
        >>> profile = Profile(model="m", batch=4, batch_sizes=(4,), layers=layers, whole_seconds=(6.0,))
        >>> line = Link(latency_seconds=0.0, bytes_per_second=1e9)
        >>> setting = Setting(profile=profile, link=line, kinds=(DeviceKind(count=2),), microbatches=4, replicas=1)
        >>> found = predict(setting, [Stage(begin=0, end=1), Stage(begin=1, end=2)])
        >>> found.seconds, found.bubble_part
        (3.75, 0.2)
    """
    found = [parts(setting, stage) for stage in stages]
    total = step_seconds(setting, found) + waiting_for_returns(setting, stages)
    turns = [taking_turns(setting, one) for one in stages]
    each = [setting.compute_seconds(one) / count for one, count in zip(stages, turns, strict=True)]
    if setting.flushes:
        added = [setting.adding_seconds(one) / count for one, count in zip(stages, turns, strict=True)]
        longest = max(range(len(stages)), key=lambda place: each[place] + added[place])
        first = [setting.first_seconds(one) for one in stages]
        own = first[longest] / turns[longest]
        compute = own + (setting.microbatches - 1) * (each[longest] + added[longest])
        bubble = max(sum(first) - own, 0.0)
        last = stages[max(range(len(stages)), key=lambda place: found[place].end)]
        reduction, update = setting.reduction_seconds(last), setting.update_seconds(last)
    else:
        slow = max(range(len(stages)), key=lambda place: found[place].pace)
        updates = setting.microbatches / turns[slow]
        compute, update, bubble = setting.microbatches * each[slow], updates * setting.update_seconds(stages[slow]), 0.0
        reduces = found[slow].pace == setting.reduction_seconds(stages[slow])
        reduction = max(total - compute - update, 0.0) if reduces else 0.0
    fixed = setting.fixed_seconds(len(stages))
    behind = [sum(one.devices for one in stages[place:]) for place in range(len(stages))]
    return Prediction(
        seconds=total + fixed,
        compute=compute,
        bubble=bubble,
        communication=max(total - compute - bubble - reduction - update, 0.0),
        reduction=reduction,
        update=update,
        fixed=fixed,
        memory=tuple(setting.memory(one, count) for one, count in zip(stages, behind, strict=True)),
    )
