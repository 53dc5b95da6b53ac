"""The comparison of two runs of a script: the value that differs first, the difference and its kind. Pure functions.

A difference is relative to the largest number of the value on one device, so small weights are held to their own size.
Values that are rounding errors relative to their kind are held to a fraction of the kind's size.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.verify.proof.state_files import Run, Step

BATCH = "batch"
#: in the order in which a step makes them: what is first wrong is the cause of the rest
KINDS = (BATCH, "log", "state", "slot", "weight", "prediction")
#: kinds whose values may be rounding alone, as where a gradient is zero in exact arithmetic
ROUNDING = ("weight", "slot")
# of the largest number among the values of a kind: what is smaller throughout is not held to its own size
_FLOOR = 1e-3
_LEAST = 1e-12
# how many times as far as by another order of the examples a value may be, and how far beside others of its kind
_ORDERS, _SMALL = 10.0, 1e-2

Values = Mapping[str, Sequence[NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs.

    Attributes:
        step: the first step after which it differs; 0 is before the first.
        kind: the kind of value, one of `KINDS`.
        size: the difference there, relative to the largest number on one device; infinite if incomparable.
        largest: the largest difference over all steps.
        where: the worker and the replica, if there are several, and the two numbers.
    """

    step: int
    kind: str
    name: str
    size: float
    largest: float
    where: str


def compared(
    workers: Sequence[Sequence[Step]],
    reference: Sequence[Step],
    run: Run,
    *,
    tolerance: float,
    turned: Sequence[Step] = (),
) -> tuple[list[Difference], float]:
    """Return the values that differ by more than a tolerance, first cause first, and the rest's largest difference."""
    rounding = {one.number: one.values for one in turned}
    found: dict[tuple[str, str], Difference] = {}
    rest = 0.0
    for one in _batches(run):
        found.setdefault((one.kind, one.name), one)
    for theirs in reference:
        for worker, steps in enumerate(workers):
            ours = next((one for one in steps if one.number == theirs.number), None)
            who = f"worker {worker}" if len(workers) > 1 else ""
            if ours is None:
                continue
            for one in _differences(ours, theirs, rounding.get(theirs.number, {}), who, tolerance):
                if one.size <= tolerance:
                    rest = max(rest, one.size)
                    continue
                known = found.get((one.kind, one.name), one)
                first = one if known.step == one.step and one.size > known.size else known
                found[one.kind, one.name] = replace(first, largest=max(known.largest, one.size))
    order = sorted(found.values(), key=lambda one: (one.step, KINDS.index(one.kind), -one.size, one.name))
    return order, rest


def may_round(differences: Sequence[Difference]) -> bool:
    """Return whether differences may be rounding, which another run decides: some in weights, none in batches."""
    found = {one.kind for one in differences}
    return BATCH not in found and not found.isdisjoint(ROUNDING)


def other_batches(workers: Sequence[Sequence[Sequence[str]]], reference: Sequence[Sequence[str]]) -> int | None:
    """Return the first step of a loop with other examples than on one device; 0: none, None: no step was seen.

    A step receives the whole batch on each worker, or its part of it.
    """
    if not any(reference) or not any(workers[0]):
        return None
    for step, theirs in enumerate(reference):
        ours = [of_worker[step] if step < len(of_worker) else [] for of_worker in workers]
        added = [f"{sum(r for r, _ in parts)} {sum(d for _, d in parts) % (1 << 64)}" for parts in _pairs(ours)]
        if list(theirs) not in (list(ours[0]), added):
            return step + 1
    return 0


def _pairs(ours: Sequence[Sequence[str]]) -> list[list[tuple[int, int]]]:
    if len({len(one) for one in ours}) != 1:
        return []
    return [[(int(r), int(d)) for r, d in (one.split() for one in tensors)] for tensors in zip(*ours, strict=True)]


def _batches(run: Run) -> Iterator[Difference]:
    for number, (other, detail) in enumerate(zip(run.others, run.details, strict=True), start=1):
        if other == "rows":
            name, _, told = detail.partition(" ")
            yield Difference(step=number, kind=BATCH, name=name, size=math.inf, largest=math.inf, where=told)


def _differences(ours: Step, theirs: Step, turned: Values, who: str, tolerance: float) -> Iterator[Difference]:
    largest, number = _largest(theirs.values), theirs.number
    for name in {**theirs.values, **ours.values}:
        kind, _, path = name.partition("/")
        if name not in ours.values or name not in theirs.values:
            if kind == "slot" and number == 0:
                continue  # Keras makes them in the first step
            there = "on one device" if name in theirs.values else "under the strategy"
            yield Difference(step=number, kind=kind, name=path, size=math.inf, largest=math.inf, where=f"{there} alone")
            continue
        reference, copies = theirs.values[name][0], ours.values[name]
        for replica, value in enumerate(copies):
            of_kind = largest[_group(name)]
            size, told = _size(value, reference, of_kind, tolerance)
            may_be_rounding = size > tolerance and kind in ROUNDING and name in turned
            if may_be_rounding and _is_rounding(value, reference, turned[name][0], of_kind):
                continue
            place = [who, f"replica {replica}" if len(copies) > 1 else ""]
            where = ", ".join([*filter(None, place), told])
            yield Difference(step=number, kind=kind, name=path, size=size, largest=size, where=where)


def _group(name: str) -> str:
    """Return the group of values of one size: those of a kind, and slots of one name."""
    kind, _, path = name.partition("/")
    return f"{kind}/{path.rpartition('/')[2]}" if kind == "slot" else name if kind == "log" else kind


def _largest(values: Values) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, copies in values.items():
        if copies[0].dtype.kind in "fc":
            group = _group(name)
            found[group] = max(found.get(group, 0.0), _most(copies[0]))
    return {name: found.get(name, 0.0) for name in map(_group, values)}


def _most(value: NDArray[Any]) -> float:
    finite = np.abs(value[np.isfinite(value)])
    return float(finite.max()) if finite.size else 0.0


def _size(value: NDArray[Any], reference: NDArray[Any], of_kind: float, tolerance: float) -> tuple[float, str]:
    if value.shape != reference.shape:
        return math.inf, f"shape {value.shape}, {reference.shape} on one device"
    if value.dtype.kind in "US" or reference.dtype.kind in "US":
        same = value.dtype.kind == reference.dtype.kind and np.array_equal(value, reference)
        return (0.0 if same else math.inf), "" if same else "other texts"
    if not value.size:
        return 0.0, ""
    kinds = {value.dtype.kind, reference.dtype.kind}
    exact = kinds.isdisjoint("fc")
    wide = np.complex128 if "c" in kinds else np.float64
    one, other = value.astype(wide), reference.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    same = value == reference if exact else one == other  # float64 has not all integers
    apart = np.where(same | (np.isnan(one) & np.isnan(other)), 0.0, np.maximum(apart, 1.0) if exact else apart)
    apart = np.where(np.isnan(apart), math.inf, apart)
    place = np.unravel_index(int(np.argmax(apart)), apart.shape)
    scale = max(_most(other), _FLOOR * of_kind, _LEAST)
    size = float(apart[place]) / scale
    if exact and size:
        size = max(size, 2 * tolerance)  # integers are the same or are not
    index = "".join(f"[{i}]" for i in place)
    return size, f"{index} {one[place]:.6g}, {other[place]:.6g} on one device".strip()


def _is_rounding(value: NDArray[Any], reference: NDArray[Any], turned: NDArray[Any], of_kind: float) -> bool:
    """Return whether a value is no farther from one device than another order of the examples makes it."""
    if value.dtype.kind not in "fc" or not value.shape == reference.shape == turned.shape:
        return False
    apart, by_order = (float(np.abs(one - reference).max(initial=0.0)) for one in (value, turned))
    return apart <= min(_ORDERS * by_order, _SMALL * of_kind)
