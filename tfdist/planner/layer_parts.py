"""Choose the layers of a stage to cut along the model axis, for the shortest micro-batch. Loads no TensorFlow.

HyPar's rule on a given mesh: all processes along the model axis have the same rows, and a layer has all of its
weights on each of them, or a part. Two adjacent layers cut by columns and by rows exchange nothing between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.planner.layer_profile import LayerProfile
from tfdist.planner.planner_link import Link

#: layers whose processes have summands of the result, by themselves: heads, rows of a table
_SUMMING = ("Embedding", "MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of a layer for a micro-batch, whole and in parts; `part` is None where it cannot be cut.

    Attributes:
        entering: the sum of the gradients of its inputs.
        leaving: the gathering of its result.
        summing: the sum of the partial results.
        has_summands: the layer alone ends in partial results.
        joins: the layer takes what the layer before leaves in parts.
    """

    whole: float
    part: float | None = None
    entering: float = 0.0
    leaving: float = 0.0
    summing: float = 0.0
    has_summands: bool = False
    joins: bool = False


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
                leaving=link.all_reduce_seconds(result, parts) / 2,  # a gathering is half of it
                summing=link.all_reduce_seconds(result, parts),
                has_summands=one.kind in _SUMMING,
                joins=one.joins,
            )
        )
    return found


def _step(before: Costs | None, one: Costs, in_parts: bool) -> tuple[float, Costs | None]:
    """The seconds that a layer adds, and the layer if it leaves its result in parts."""
    gathered = 0.0 if before is None else before.leaving
    if not in_parts or one.part is None:
        return gathered + one.whole, None
    if before is not None and one.joins:
        return one.part + one.summing, None
    if one.has_summands:
        return gathered + one.entering + one.part + one.summing, None
    return gathered + one.entering + one.part, one


def seconds(given: Sequence[Costs], choices: Sequence[bool]) -> float:
    """Seconds of a stage whose layers are cut or whole; at its end all is whole."""
    total, open_ = 0.0, None
    for one, in_parts in zip(given, choices, strict=True):
        adds, open_ = _step(open_, one, in_parts)
        total += adds
    return total + (0.0 if open_ is None else open_.leaving)


def least(given: Sequence[Costs]) -> tuple[bool, ...]:
    """Choose the layers to cut for the least time, by dynamic programming; of equal choices the fewest and last.

    Source: L. Song et al., "HyPar: Towards Hybrid Parallelism for Deep Learning Accelerator Array", 2019. Theirs
    minimizes bytes for halves of the devices; computing counts here as well.
    """
    best: dict[bool, tuple[float, int, tuple[bool, ...], Costs | None]] = {False: (0.0, 0, (), None)}
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
        (total + (0.0 if left is None else left.leaving), count, chosen) for total, count, chosen, left in best.values()
    ]
    return min(ends)[2]
