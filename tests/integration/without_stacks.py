"""Lets TensorFlow and Keras not look after stacks of Python, in every process that is forked from this one.

For every operation that it traces TensorFlow walks the whole stack of Python and looks up the line of each frame, of
which there are a hundred. It shows the stack in the message of an operation that fails; what kind of error that is, and
what it says for itself, is the same without.

Both also wrap each of their functions to leave their own frames out of a traceback, and ask in each call whether they
should: a twenty-fifth of a short training. An error is the same without, and its traceback has all frames.
"""

import gc
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from keras.src.utils import traceback_utils as of_keras
from tensorflow.python.framework import ops
from tensorflow.python.util import traceback_utils as of_tensorflow

_made = inspect.unwrap(ops._create_c_op)
assert inspect.getfullargspec(_made).args[-2:] == ["op_def", "extract_traceback"], "what makes operations has changed"
_made.__defaults__ = (None, False)


def _wrapper(filters: Callable[..., Any]) -> CodeType:
    """Return the code of the functions that `filter_traceback` makes."""
    (code,) = (constant for constant in filters.__code__.co_consts if isinstance(constant, CodeType))
    assert code.co_freevars == ("fn",), "what filters tracebacks has changed"
    return code


def _plain(fn: Callable[..., Any]) -> FunctionType:
    def error_handler(*given: Any, **more: Any) -> Any:
        return fn(*given, **more)

    assert isinstance(error_handler, FunctionType)
    return error_handler


_wrappers = [_wrapper(of_keras.filter_traceback), _wrapper(of_tensorflow.filter_traceback)]
for _function in gc.get_objects():
    if type(_function) is FunctionType and any(_function.__code__ is code for code in _wrappers):
        _function.__code__ = _plain(_function).__code__
