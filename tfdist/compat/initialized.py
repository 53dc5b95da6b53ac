"""Detects whether this process has used TensorFlow or Keras already; public functions would begin TensorFlow to find
out.

Private names, read in TensorFlow 2.21.0 and Keras 3.15.1: `context()._context_handle`, set once an operation has run or
a variable or strategy was made; "object_name_uids" of `keras.src.backend.common.global_state`, where Keras counts the
layers that it has named. A layer draws the seeds of its weights when it is made, long before TensorFlow begins.
"""

import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context


def what_was_made() -> str | None:
    """Return a description of the objects that were made; None if there are none."""
    if has_begun():
        return "TensorFlow has begun: a tensor, a variable, a dataset or a strategy was made"
    named = global_state.get_global_attribute("object_name_uids")
    return f"Keras has made a {next(iter(named))}" if named else None


def has_begun() -> bool:
    return context.context()._context_handle is not None


def flush_summaries() -> None:
    """Flush the default writer of summaries, without starting TensorFlow."""
    if has_begun():
        tf.summary.flush()
