"""Caches the traced functions with which Keras takes batches of arrays, in every process forked from this one.

Each `fit`, `evaluate` and `predict` of arrays traces three functions for tf.data: the order of rows, the rows of a
batch, and the batch itself. That takes a seventh of a short training. The functions depend on the number of rows, the
batch size and the types of arrays, but not on values of arrays, so a process keeps them. A shuffled order draws random
numbers, and is traced each time.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.data.ops import structured_function
from tensorflow.python.eager import context

_traced = structured_function.StructuredFunctionWrapper
_kept: dict[Any, Any] = {}


def inside(code: CodeType) -> dict[str, CodeType]:
    """Return the functions that are defined in a function, at any depth."""
    own = {one.co_name: one for one in code.co_consts if isinstance(one, CodeType)}
    return own | {name: one for inner in own.values() for name, one in inside(inner).items()}


_NAMES = ("permutation", "slice_batch_indices", "grab_batch")
_found = inside(ArrayDataAdapter.get_tf_dataset.__code__)
assert set(_NAMES) <= set(_found), "how Keras takes batches of arrays has changed"
_OF_KERAS = {_found[name] for name in _NAMES}


def _key(function: Callable[..., Any], dataset: Any) -> Any:
    """Return everything on which such a function depends; None if that is not known."""
    code = getattr(function, "__code__", None)
    if code not in _OF_KERAS or dataset is None or not context.executing_eagerly():
        return None
    held = dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    if held.pop("shuffle", False):
        return None
    held.pop("tf", None)
    adapter = held.pop("self", None)
    remainder = None if adapter is None else adapter._partial_batch_size
    if not all(isinstance(value, int) for value in held.values()):
        return None
    return code, tuple(sorted(held.items())), remainder, repr(dataset.element_spec), context.context().device_name


def _wrapped(func: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    key = _key(func, options.get("dataset"))
    if key is None:
        return _traced(func, *arguments, **options)
    if key not in _kept:
        _kept[key] = _traced(func, *arguments, **options)
    return _kept[key]


structured_function.StructuredFunctionWrapper = _wrapped
