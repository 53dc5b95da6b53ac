"""Lets Keras not trace anew how it slices arrays that are shaped alike, in every process that is forked from this one.

Each `fit`, `evaluate` and `predict` with arrays makes a dataset of three functions that TensorFlow traces, a tenth of a
short training. What they do follows from the shapes and from numbers of the adapter; the arrays themselves are given to
them. What shuffles is traced each time, since its seeds belong to the trace.
"""

from typing import Any

from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.data.ops import structured_function
from tensorflow.python.eager import context

_PLACE = f"{ArrayDataAdapter.__module__}:{ArrayDataAdapter.get_tf_dataset.__qualname__}.<locals>."
_Wrapper = structured_function.StructuredFunctionWrapper
_traced = _Wrapper.__init__
_KEPT: dict[Any, dict[str, Any]] = {}


def _numbers(function: Any) -> tuple[Any, ...] | None:
    """Return what a function of the adapter depends on beside what it is given; None if that is not known."""
    found: list[Any] = [function.__qualname__]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = cell.cell_contents
        if isinstance(value, ArrayDataAdapter):
            value = value._partial_batch_size
        if name == "tf":
            continue
        if not isinstance(value, int | None) or (name == "shuffle" and value):
            return None
        found.append(value)
    return tuple(found)


def _init(self: Any, func: Any, transformation_name: str, dataset: Any = None, **options: Any) -> None:
    place = f"{getattr(func, '__module__', '')}:{getattr(func, '__qualname__', '')}"
    numbers = None
    if place.startswith(_PLACE) and dataset is not None and not any(options.values()) and context.executing_eagerly():
        numbers = _numbers(func)
    if numbers is None:
        _traced(self, func, transformation_name, dataset=dataset, **options)
        return
    key = (numbers, transformation_name, str(dataset.element_spec), id(context.context()))
    if key in _KEPT:
        self.__dict__.update(_KEPT[key])
        return
    _traced(self, func, transformation_name, dataset=dataset, **options)
    if not self.function.captured_inputs:
        _KEPT[key] = dict(self.__dict__)


_Wrapper.__init__ = _init
