"""The exact search for stages with the shortest step or the lowest price that fit into memory. Loads no TensorFlow.

It is dynamic programming from the last layer to the first. For each place and set of devices, it keeps the triples of
slowest pace, passing and end (see `predict`) that no other triple beats in all three. The cost of a step rises in each
of them, so the best stages are among these, whatever comes before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tfdist import validation
from tfdist.planner import step_time
from tfdist.planner.stage_cost import Setting, Stage
from tfdist.planner.step_time import Parts

#: the quantity to minimize: the time of a step, or the price of the devices in that time
OBJECTIVES = ("time", "price")
_HOUR = 3600.0
_ROUNDING = 1e-12  # sums in another order may differ by it


class _Kept(NamedTuple):
    """The stages from a place on, and the sums of their contributions."""

    pace: float
    passing: float
    end: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A possible stage, and the number of devices from it on with which it fits into memory."""

    stage: Stage
    adds: Parts
    most_under_way: float


class _Search:
    def __init__(self, setting: Setting, *, limits_memory: bool, uses_all: bool) -> None:
        self._setting = setting
        self._limits_memory = limits_memory
        self._everything = tuple(one.count for one in setting.kinds) if uses_all else None
        self._layers = len(setting.profile.layers)
        self._begins = setting.begins()
        self._turns = setting.microbatches - 1 if setting.flushes else setting.microbatches
        self._choices = {begin: self._choices_from(begin) for begin in self._begins}

    def fronts(self, objective: str) -> list[tuple[Stage, ...]]:
        """Return candidates for the lowest cost, for each set of devices."""
        slowest = {used: front[0] for used, front in self._all(None).items()}
        if objective == "price":  # a slow step may be cheap: no bound on the time alone holds
            least = min((one.pace for one in slowest.values()), default=0.0)
            return [one.stages for front in self._all((least, math.inf)).values() for one in front]
        if not slowest:
            return []
        setting = self._setting
        most = min(cost(setting, one.stages, waits_for_returns=False) for one in slowest.values())
        most -= setting.fixed_seconds(2)
        least = min(one.pace for one in slowest.values())
        return [one.stages for front in self._all((least, most)).values() for one in front]

    def _choices_from(self, begin: int) -> list[_Choice]:
        """Return the stages that may begin at a place and fit into memory with nothing after them."""
        setting, found = self._setting, []
        for end in [*(place for place in self._begins if place > begin), self._layers]:
            any_fits = False
            for kind, one in enumerate(setting.kinds):
                for devices in range(1, one.count + 1) if setting.replicas is None else [setting.replicas]:
                    stage = Stage(begin=begin, end=end, devices=devices, kind=kind)
                    most = setting.most_under_way(stage) if self._limits_memory else math.inf
                    if devices <= one.count and most >= setting.under_way(stage, devices):
                        any_fits = True
                        adds = step_time.parts(setting, stage)
                        if begin == 0 and end == self._layers:  # no pipeline, whose fixed time may differ
                            more = setting.fixed_seconds(1) - setting.fixed_seconds(2)
                            adds = replace(adds, passing=adds.passing + more)
                        found.append(_Choice(stage=stage, adds=adds, most_under_way=most))
            if not any_fits and setting.parts == 1:
                break  # a longer stage needs more still; of one with parts more layers may lie in parts
        return found

    def _all(self, bound: tuple[float, float] | None) -> dict[tuple[int, ...], list[_Kept]]:
        setting = self._setting
        found: dict[int, dict[tuple[int, ...], list[_Kept]]] = {
            self._layers: {(0,) * len(setting.kinds): [_Kept(0.0, 0.0, 0.0, ())]}
        }
        least, most = bound or (0.0, math.inf)
        fastest = max(one.speed for one in setting.kinds)
        for begin in reversed(self._begins):
            here = found[begin] = {}
            before = setting.passing_before(begin) / fastest if setting.flushes else 0.0
            for choice in self._choices[begin]:
                stage, adds = choice.stage, choice.adds
                for used, behind in found[stage.end].items():
                    total = used[stage.kind] + stage.devices
                    if total > setting.kinds[stage.kind].count:
                        continue
                    if setting.under_way(stage, sum(used) + stage.devices) > choice.most_under_way:
                        continue
                    now = (*used[: stage.kind], total, *used[stage.kind + 1 :])
                    if begin == 0 and self._everything not in (None, now):
                        continue
                    front = here.setdefault(now, [])
                    for one in behind:
                        pace, passing = max(adds.pace, one.pace, least), adds.passing + one.passing
                        end = max(adds.end, one.end)
                        if (self._turns * pace + passing + before + end) * (1 - _ROUNDING) > most:
                            continue
                        if bound is None:
                            kept = _Kept(pace, passing, end, (stage, *one.stages))
                            front[:] = [min([*front, kept], key=lambda one: (one.pace, _order(one.stages)))]
                        else:
                            _keep(front, pace, passing, end, stage, one.stages)
        return {used: front for used, front in found[0].items() if front}


def best_stages(
    setting: Setting, *, objective: str = "time", limits_memory: bool = True, uses_all: bool = True
) -> tuple[Stage, ...] | None:
    """Return the stages with the lowest cost; ties go to the fewest stages, then to those that begin earliest.

    Args:
        setting: the job and the devices.
        objective: the objective, one of `OBJECTIVES`.
        limits_memory: whether stages must fit into the memory of their devices.
        uses_all: whether every device must have a stage.
    Returns:
        The stages, or None if none fit.
    Raises:
        ConfigError: the objective is unknown.

    Source: D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", 2019. PipeDream
        shortens the slowest stage, which is a step without a flush. This search shortens the whole step, within memory,
        on different devices.
    """
    validation.one_of("objective", objective, OBJECTIVES)
    search = _Search(setting, limits_memory=limits_memory, uses_all=uses_all)
    found = search.fronts(objective)

    def value(stages: tuple[Stage, ...]) -> float:
        return cost(setting, stages, objective, waits_for_returns=False)

    return min(found, key=lambda stages: (value(stages), _order(stages)), default=None)


def cost(
    setting: Setting, stages: Sequence[Stage], objective: str = "time", *, waits_for_returns: bool = True
) -> float:
    """Return the value of the objective: the seconds of a step, or the price of the devices for that time.

    The search of stages does not count waits for micro-batches to return. They hardly depend on where stages begin.
    """
    if waits_for_returns:
        seconds = step_time.predict(setting, stages).seconds
    else:
        found = [step_time.parts(setting, one) for one in stages]
        seconds = step_time.step_seconds(setting, found) + setting.fixed_seconds(len(stages))
    if objective == "time":
        return seconds
    return seconds / _HOUR * sum(one.devices * setting.kinds[one.kind].price for one in stages)


def _order(stages: Sequence[Stage]) -> tuple[int, list[tuple[int, int, int]]]:
    return len(stages), [(one.begin, one.kind, one.devices) for one in stages]


def _keep(front: list[_Kept], pace: float, passing: float, end: float, stage: Stage, rest: tuple[Stage, ...]) -> None:
    """Add a candidate unless another beats it, and drop those that it beats; of equals, the first in order stays."""
    for other in front:  # hardly one in ten candidates gets past it: stages are joined afterwards
        if other.pace <= pace and other.passing <= passing and other.end <= end:
            if other[:3] == (pace, passing, end) and _order((stage, *rest)) < _order(other.stages):
                break
            return
    front[:] = [one for one in front if not (pace <= one.pace and passing <= one.passing and end <= one.end)]
    front.append(_Kept(pace, passing, end, (stage, *rest)))
