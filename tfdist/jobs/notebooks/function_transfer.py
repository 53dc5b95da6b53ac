"""The transfer of a function to the workers and of its result back, by value, in private files.

Workers cannot import a function of a cell, so cloudpickle sends its code and the objects to which the code refers.
Reading a pickle runs code. Here the user's own process writes it for its children, or a child for its parent, in a
private folder; no other pickle is read.

The code file has the lines of the cells (for tracebacks and AutoGraph), and then the function and its arguments. The
result file has the result of the chief's call.
"""

import contextlib
import functools
import inspect
import linecache
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, ClassVar

from tfdist.errors import UnsupportedError

Function = Callable[..., Any]


def send_function(path: Path, function: Function, arguments: tuple[Any, ...], *, tensors: bool = True) -> None:
    """Write a function and its arguments to a new private file; `tensors` tells whether tensors may be among them."""
    import cloudpickle

    with _private(path) as file:
        cloudpickle.dump(_cells(), file)
        try:
            _pickler(file, tensors).dump((function, arguments))
        except Exception as error:  # noqa: BLE001 - every class may refuse in its own way
            raise _not_sent(function, arguments, error, tensors) from None  # its frames are cloudpickle's


def receive_function(path: Path) -> tuple[Function, tuple[Any, ...]]:
    """Read what `send_function` has written, and register its source lines."""
    import cloudpickle

    with open(path, "rb") as file:
        linecache.cache.update(cloudpickle.load(file))
        function, arguments = cloudpickle.load(file)
    return function, arguments


def _pickler(file: Any, tensors: bool = True) -> Any:
    """Return a pickler that keeps the file names of code, by which lines are found; cloudpickle 3.1.3 drops them."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, obj: Any) -> Any:
            if not tensors and _starts_tensorflow(obj):
                raise TypeError("its copy would start TensorFlow in a worker before a strategy can be made there")
            return super().reducer_override(obj)

    return Pickler(file)


def _starts_tensorflow(value: Any) -> bool:
    """Whether a copy of a value makes tensors or variables, as those of tensors, models and optimizers do."""
    tf, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    if tf is not None and isinstance(value, tf.Tensor | tf.Variable):
        return True
    return (
        keras is not None and isinstance(value, keras.Layer | keras.Optimizer | keras.Metric) and value.variables != []
    )


def _reduced(code: CodeType) -> tuple[Any, ...]:
    import cloudpickle

    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code, (make, arguments, code.co_filename)


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def send_result(path: Path, result: Any, *, of: str) -> None:
    """Write a result under another name first, so that the file is complete once it exists."""
    import cloudpickle

    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with _private(temporary) as file:
            cloudpickle.dump(result, file)
    except Exception as error:  # noqa: BLE001 - likewise
        place, part, cause = _culprit("the result", result) or ("the result", result, error)
        raise UnsupportedError(
            f"{place} of {of}, {_kind(part)}, cannot be sent to the process that has asked for it ({_line(cause)}). "
            "Return numbers, arrays, texts, or lists and dicts of them, such as `history.history` or "
            "`model.get_weights()`; or save it to a file and return the path.",
            name=f"{place} of {of}",
        ) from None
    os.replace(temporary, path)


def receive_result(path: Path) -> Any:
    import cloudpickle

    with open(path, "rb") as file:
        return cloudpickle.load(file)


def name_of(function: Function) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


@contextlib.contextmanager
def _private(path: Path) -> Iterator[Any]:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        yield file


def _cells() -> dict[str, Any]:
    """Return sources without a file, such as those of a notebook's cells."""
    entries = dict(linecache.cache)
    return {name: entry for name, entry in entries.items() if len(entry) == 4 and entry[1] is None}


def _not_sent(function: Function, arguments: tuple[Any, ...], error: Exception, tensors: bool) -> UnsupportedError:
    name = name_of(function)
    for place, value in (*_named(function, arguments), *_variables(function)):
        found = _culprit(place, value, tensors)
        if found is not None:
            place, part, cause = found
            return UnsupportedError(
                f"{place}, {_kind(part)}, which {name} uses, cannot be sent to the workers ({_line(cause)}). Make it "
                "inside the function; or hand over what it is made from: a path, an array, a list.",
                name=place,
            )
    return UnsupportedError(
        f"{name} cannot be sent to the workers ({_line(error)}). Let it be a plain function, which makes inside "
        "whatever is not a number, a text, an array, or a list or dict of them.",
        name=name,
    )


def _named(function: Function, arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
    try:
        names: Mapping[str, Any] = inspect.signature(function).bind(*arguments).arguments
    except (TypeError, ValueError):  # a callable with unknown parameters
        return [(f"argument {number}", value) for number, value in enumerate(arguments, start=1)]
    return [(f"the argument {name!r}", value) for name, value in names.items()]


def _variables(function: Any) -> list[tuple[str, Any]]:
    """Return the variables outside of a function that its code refers to, by name."""
    if isinstance(function, functools.partial):
        given = [*enumerate(function.args), *function.keywords.items()]
        return [*_variables(function.func), *((f"the argument {name!r} of partial()", value) for name, value in given)]
    if isinstance(function, MethodType):
        return [*_variables(function.__func__), ("the object of the method", function.__self__)]
    if not isinstance(function, FunctionType):
        return []
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = {name: cell.cell_contents for name, cell in cells.items() if not _is_empty(cell)}
    names = _names_in(function.__code__)
    found |= {name: value for name, value in function.__globals__.items() if name in names}
    return [(f"the variable {name!r}", value) for name, value in found.items()]


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell  # a cell is never its own content; an empty one raises
    except ValueError:
        return True


def _culprit(place: str, value: Any, tensors: bool = True, depth: int = 0) -> tuple[str, Any, Exception] | None:
    """Return the part of a value that cannot be sent: its place in words, itself, and the reason; None if all can."""
    cause = _refusal(value, tensors)
    if cause is None or depth > 5:
        return None if cause is None else (place, value, cause)
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{place}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(value)]
    elif isinstance(value, FunctionType):
        parts = [(f"{inner} of the function {value.__name__}", part) for inner, part in _variables(value)]
    for inner, part in parts:
        found = None if part is value else _culprit(inner, part, tensors, depth + 1)
        if found is not None:
            return found
    return place, value, cause


def _refusal(value: Any, tensors: bool) -> Exception | None:
    try:
        _pickler(_Nowhere(), tensors).dump(value)
    except Exception as error:  # noqa: BLE001 - every class may refuse in its own way
        return error
    return None


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _kind(value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"of type {module}{kind.__qualname__}"


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
