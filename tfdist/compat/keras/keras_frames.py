"""The distinction between calls from Keras' own code and calls from the user's code.

A user's loop may call a strategy freely. A `fit`, `evaluate` or `predict` that tfdist did not recognize would silently
train as under TensorFlow's strategies, to other weights. So only the module of a calling frame counts here, which no
renamed method or attribute changes.

Private names, read in Keras 3.15.1: only `__wrapped__`, which `traceback_utils.filter_traceback` sets.
"""

import itertools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfdist.compat import version_pairs
from tfdist.errors import UnsupportedError

#: Keras 3, and Keras 2 as a package of its own
_PACKAGES = ("keras", "tf_keras")
_T = TypeVar("_T")


def calling_keras_function(callee: Any) -> str | None:
    """Return the Keras function that called a method of this object, if any; frames of TensorFlow are skipped."""
    for frame in frames():
        package = _package(frame)
        names = frame.f_code.co_varnames
        if package == "tensorflow" or (names and frame.f_locals.get(names[0]) is callee):
            continue
        return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}" if package in _PACKAGES else None
    return None


def refuse(what: str, *, seen: str) -> UnsupportedError:
    """Return the error for a call of Keras that tfdist does not recognize."""
    judgement = version_pairs.judge(tf.__version__, keras.__version__)
    second = sys.modules.get("tf_keras")
    beside = "" if second is None else f" tf_keras {second.__version__}, whose models are of Keras 2, is loaded too."
    main = version_pairs.MAIN
    advice = f'Install a tested pair: pip install "tensorflow=={main.tensorflow}" "keras=={main.keras}".'
    if judgement.standing is version_pairs.Standing.TESTED:
        advice = "So something else in this process has replaced methods of Keras: leave it out, or report this."
    return UnsupportedError(
        f"{what} {seen}, so it would train as under TensorFlow's own strategies, to other weights than on one device. "
        f"tfdist finds the model that is training in Keras' private code, which differs between versions: "
        f"{judgement.text}.{beside} {advice} A loop of your own, with strategy.run, works with any version."
    )


def code_of(method: Any) -> CodeType:
    """Return the code of a Keras method inside the wrapper that shortens its tracebacks."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method.__code__


def frames(skip: int = 1, count: int | None = None) -> Iterator[FrameType]:
    """Yield the frames that have called, from the innermost out."""
    yield from itertools.islice(outwards(sys._getframe(1 + skip)), count)


def innermost(kind: type[_T], count: int) -> _T | None:
    """Return the innermost object of a kind that is calling, apart from the function that asks and its own caller."""
    for frame in frames(3, count):
        if isinstance(found := frame.f_locals.get("self"), kind):
            return found
    return None


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
