"""Lets operations of TensorFlow not remember where they were made, in every process that is forked from this one.

For every operation that it traces TensorFlow walks the whole stack of Python and looks up the line of each frame, of
which there are a hundred. It shows the stack in the message of an operation that fails; what kind of error that is, and
what it says for itself, is the same without.
"""

import inspect

from tensorflow.python.framework import ops

_made = inspect.unwrap(ops._create_c_op)
assert inspect.getfullargspec(_made).args[-2:] == ["op_def", "extract_traceback"], "what makes operations has changed"
_made.__defaults__ = (None, False)
