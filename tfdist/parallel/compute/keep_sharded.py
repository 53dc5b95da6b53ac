"""Activations that stay in parts between a layer by columns and one by rows, without being gathered or cut.

Only the model or layer that computes both knows when this is possible, so it says so around its computation.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from tfdist.parallel.compute.activations import Along


@dataclass(frozen=True)
class Kept:
    """The layers that compute with parts of activations around them, by what they do."""

    giving: tuple[Any, ...] = ()  # layers that leave their result in parts
    taking: tuple[Any, ...] = ()  # layers that are given a part
    entered: tuple[Any, ...] = ()  # layers that are given the result of `Along.entering` or `Along.collected`
    scattering: tuple[Any, ...] = ()  # layers that sum to parts of the sequence
    last: tuple[Any, ...] = ()  # layers that make results of a model, which may be gathered when they are read
    # dropout layers that are given parts, each with its axis and the cut dim, counted from the last dim
    between: tuple[tuple[Any, Along, int], ...] = ()


_kept: ContextVar[tuple[Kept, ...]] = ContextVar("activations that stay in parts", default=())


@contextlib.contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Let layers that compute inside the context, in this thread, keep activations in parts."""
    before = _kept.set((*_kept.get(), kept))
    # they know the size of the whole, and would refuse a part
    specs = [(layer, layer.input_spec) for layer in kept.taking]
    for layer in kept.taking:
        layer.input_spec = None
    try:
        yield
    finally:
        for layer, spec in specs:
            layer.input_spec = spec
        _kept.reset(before)


def is_among(layer: Any, field: Literal["giving", "taking", "entered", "scattering", "last"]) -> bool:
    """Return whether a layer is in this field of a `Kept` that applies now."""
    return any(other is layer for one in _kept.get() for other in getattr(one, field))


def place_between(layer: Any) -> tuple[Along, int] | None:
    """Return the transfers and the cut dim, counted from the last, of a dropout layer's input; None if it is whole."""
    places = [(along, dim) for one in _kept.get() for other, along, dim in one.between if other is layer]
    return places[0] if places else None
