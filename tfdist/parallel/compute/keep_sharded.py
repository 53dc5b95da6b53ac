"""Let activations stay in parts between two layers, inside the model or layer that computes both.

Where one layer computes columns and the next one rows, neither a gathering nor a cutting is between them. Only what
computes both can know that, so it says so around its computation.

Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tfdist.parallel.compute.activations import Along


@dataclass(frozen=True)
class Kept:
    """What some layers do otherwise than alone.

    Attributes:
        giving: leave their result in parts.
        taking: are given a part.
        entered: are given what `Along.entering` or `Along.collected` has returned.
        scattering: add up their summands to parts of the sequence.
        last: have results of a model, which may be gathered when they are taken.
        between: dropout layers that are given a part, each with the axis, and the dim, counted from the last one.
    """

    giving: tuple[Any, ...] = ()
    taking: tuple[Any, ...] = ()
    entered: tuple[Any, ...] = ()
    scattering: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()
    between: tuple[tuple[Any, Along, int], ...] = ()


_kept: ContextVar[tuple[Kept, ...]] = ContextVar("activations that stay in parts", default=())


@contextlib.contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Let layers that compute inside, in this thread, do what is said."""
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


def gives_part(layer: Any) -> bool:
    """Return whether a layer leaves its result in parts."""
    return any(other is layer for one in _kept.get() for other in one.giving)


def is_last(layer: Any) -> bool:
    """Return whether what a layer returns is a result of a model."""
    return any(other is layer for one in _kept.get() for other in one.last)


def takes_part(layer: Any) -> bool:
    """Return whether a layer is given a part."""
    return any(other is layer for one in _kept.get() for other in one.taking)


def is_entered(layer: Any) -> bool:
    """Return whether what a layer is given has entered already."""
    return any(other is layer for one in _kept.get() for other in one.entered)


def is_scattering(layer: Any) -> bool:
    """Return whether a layer adds up its summands to parts of the sequence."""
    return any(other is layer for one in _kept.get() for other in one.scattering)


def place_between(layer: Any) -> tuple[Along, int] | None:
    """Return along which axis, and of which dim counted from the last one, a dropout layer is given a part."""
    places = [(along, dim) for one in _kept.get() for other, along, dim in one.between if other is layer]
    return places[0] if places else None
