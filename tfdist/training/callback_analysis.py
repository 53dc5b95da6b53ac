"""The detection of callbacks that can only watch, from their code, before they run.

A callback acts on its model, which it reaches by `self.model` or by something within reach of its script. Code that
names no such way, and reaches only plain values, libraries and functions of which the same holds, cannot stop training
or change an optimizer. What cannot be seen through counts as a way.
"""

import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

# How code comes to the model, or to what has no name in it.
_TO_THE_MODEL = {"model", "_model", "set_model", "optimizer", "stop_training"}
_WITHOUT_ITS_NAME = {"getattr", "attrgetter", "vars", "globals", "locals", "__dict__", "__getattribute__"}
_TO_ANYTHING = {"eval", "exec", "gc", "inspect", "_getframe", "modules", "import_module", "__import__"}
_WAYS = _TO_THE_MODEL | _WITHOUT_ITS_NAME | _TO_ANYTHING
_VALUES = (type(None), bool, int, float, complex, str, bytes, type(...))
_CONTAINERS = (list, tuple, set, frozenset, deque)
_OF_PYTHON = ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def only_watches(callback: Any) -> bool:
    """Return whether a callback cannot change the training that it watches; False if its code does not show it.

    Example:
        >>> import time
        >>> class Seconds:
        ...     def on_train_batch_end(self, batch, logs=None):
        ...         self.ended = time.monotonic()
        >>> class Stops:
        ...     def on_train_batch_end(self, batch, logs=None):
        ...         self.model.stop_training = True
        >>> only_watches(Seconds()), only_watches(Stops())
        (True, False)
    """
    kinds = [kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] not in ("keras", "builtins")]
    own = {name: value for name, value in vars(callback).items() if name != "_model"}
    parts = [item for kind in kinds for item in vars(kind).items() if item[0] not in _OF_PYTHON]
    if not _WAYS.isdisjoint([name for name, _ in parts]):
        return False
    seen = {id(callback), *(id(kind) for kind in kinds)}
    return all(_is_plain(value, seen) for value in [*(value for _, value in parts), *own.values()])


def _is_plain(value: Any, seen: set[int]) -> bool:
    if isinstance(value, _VALUES) or id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, property):
        return all(_is_plain(one, seen) for one in (value.fget, value.fset, value.fdel))
    if isinstance(value, (staticmethod, classmethod)):
        return _is_plain(value.__func__, seen)
    if type(value) is dict:
        return all(_is_plain(one, seen) for pair in value.items() for one in pair)
    if type(value) in _CONTAINERS:
        return all(_is_plain(one, seen) for one in value)
    if isinstance(value, BuiltinFunctionType):
        return _is_plain(value.__self__, seen)
    if isinstance(value, FunctionType):
        return _is_of_library(value.__module__) or all(_is_plain(one, seen) for one in _within(value))
    if isinstance(value, (ModuleType, type)):
        return _is_of_library(value.__name__ if isinstance(value, ModuleType) else value.__module__)
    return type(value).__module__ == "numpy"


def _within(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function's code reaches; an opaque object if it names a way to a model."""
    yield from (function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # has no value yet
            yield object()
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in _WAYS:
                yield object()
            if name in function.__globals__:
                yield function.__globals__[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_of_library(name: str | None) -> bool:
    """True for modules of Python and installed ones, which know no model that they are not given."""
    root = (name or "").partition(".")[0]
    if root in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return file.startswith(_LIBRARIES)
