"""Choose the layers of a stage to cut along the model axis, for the shortest micro-batch.

HyPar's rule where the mesh is given: along the model axis all processes have the same rows, so a layer either has all
of its weights on each, and computes all, or a part of them, and computes a part. What travels then depends on its
neighbour too: two layers behind one another, by columns and by rows, exchange nothing between them. Loads no
TensorFlow.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdist.planner.layer_profile import LayerProfile
from tfdist.planner.planner_link import Link

__all__ = ["Costs", "costs", "every", "least", "seconds"]

#: layers whose processes have summands of the result, by themselves: heads, rows of a table
_SUMMING = ("Embedding", "MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of a layer for a micro-batch.

    Attributes:
        whole: to compute with all weights.
        part: with a part of them; None: it cannot.
        entering: to add up the gradients of what it takes.
        leaving: to put its result together.
        summing: to add up the summands of its result.
        has_summands: whether it ends in these by itself.
        joins: whether it takes what the layer before leaves in parts.
    """

    whole: float
    part: float | None = None
    entering: float = 0.0
    leaving: float = 0.0
    summing: float = 0.0
    has_summands: bool = False
    joins: bool = False


def costs(layers: Sequence[LayerProfile], times: Sequence[float], parts: int, link: Link, rows: float) -> list[Costs]:
    """Return what each layer costs, whole and in parts."""
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
    """Return the seconds that a layer adds, and the layer if it leaves its result in parts."""
    gathered = 0.0 if before is None else before.leaving
    if not in_parts or one.part is None:
        return gathered + one.whole, None
    if before is not None and one.joins:
        return one.part + one.summing, None
    if one.has_summands:
        return gathered + one.entering + one.part + one.summing, None
    return gathered + one.entering + one.part, one


def seconds(given: Sequence[Costs], choices: Sequence[bool]) -> float:
    """Return the seconds of a stage whose layers lie in parts or whole; at its end all is whole.

    Example:
        >>> wide = Costs(whole=8.0, part=4.0, entering=1.0, leaving=2.0, summing=3.0)
        >>> narrow = Costs(whole=8.0, part=4.0, entering=1.0, leaving=2.0, summing=3.0, joins=True)
        >>> [seconds([wide, narrow], pair) for pair in ((False, False), (True, False), (False, True), (True, True))]
        [16.0, 15.0, 15.0, 12.0]
    """
    total, open_ = 0.0, None
    for one, in_parts in zip(given, choices, strict=True):
        adds, open_ = _step(open_, one, in_parts)
        total += adds
    return total + (0.0 if open_ is None else open_.leaving)


def least(given: Sequence[Costs]) -> tuple[bool, ...]:
    """Return which layers lie in parts in the stage that takes the least time; of equal ones the fewest, the last.

    By dynamic programming over the layers, with what is best where the result is whole, and where it is in parts.

    Source: L. Song et al., "HyPar: Towards Hybrid Parallelism for Deep Learning Accelerator Array", 2019. Theirs makes
    bytes few, for halves that divide the batch or the weights of a layer; here computing counts as well.
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


def every(given: Sequence[Costs]) -> Iterator[tuple[bool, ...]]:
    """Yield all choices: what `least` is compared with in tests."""
    yield from itertools.product(*[(False, True) if one.part is not None else (False,) for one in given])
