"""Caches the traced functions with which tfdist cuts batches, in every process forked from this one.

Each `fit`, `evaluate` and `predict` under a strategy traces one for tf.data: a twentieth of a short training with two
replicas in one process, an eighth with two workers. It depends on the parts that the process takes and on the types of
the elements, not on their values. Where shares move it reads them, and is traced each time.
"""

import threading
from collections.abc import Callable
from typing import Any

from tensorflow.python.data.ops import structured_function
from tensorflow.python.eager import context

from tests.integration.without_slices import inside
from tfdist.training import global_batches

_mapped = global_batches._mapped
_traced = structured_function.StructuredFunctionWrapper
_NAMES = ("alone", "shared")
_found = inside(global_batches._slices.__code__)
assert set(_NAMES) <= set(_found), "how tfdist cuts batches has changed"
_CUTS = {_found[name]: name for name in _NAMES}
_kept: dict[Any, tuple[Any, Any]] = {}
_now = threading.local()  # what is kept, to be used once, or a list for what is traced


def _key(dataset: Any, make: Callable[..., Any]) -> Any:
    """Return everything on which such a function depends; None if that is not known."""
    name = _CUTS.get(getattr(make, "__code__", None))
    if name is None or not context.executing_eagerly():
        return None
    held = _held(make)
    if held.get("edges") is not None:
        return None
    whole = tuple(_held(held["read"])["whole"])
    spec = dataset.element_spec
    return name, held["share"], whole, type(spec), repr(spec), context.context().device_name


def _held(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a function has of the functions around it."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _wrapped(func: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    kept, _now.kept = getattr(_now, "kept", None), None
    if kept is not None and not isinstance(kept, list):
        return kept
    made = _traced(func, *arguments, **options)
    if kept is not None:
        made._func = None  # it has been traced, and refers to the dataset
        kept.append(made)
    return made


def _mapped_once(dataset: Any, make: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    key = _key(dataset, make)
    if key is None:
        return _mapped(dataset, make, **options)
    try:
        if key in _kept:
            _now.kept, layout = _kept[key]
            return dataset.map(make, **options), layout
        _now.kept = found = []
        mapped, layout = _mapped(dataset, make, **options)
        _kept[key] = found[0], layout
        return mapped, layout
    finally:
        _now.kept = None


structured_function.StructuredFunctionWrapper = _wrapped
global_batches._mapped = _mapped_once
