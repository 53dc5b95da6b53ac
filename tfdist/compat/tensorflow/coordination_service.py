"""Key-value notes between workers: TensorFlow has no public way to wait for one worker without a collective of all.

Private names, read in TensorFlow 2.21.0: `set_config_key_value`, `get_config_key_value` of
`tensorflow.python.eager.context`.
"""

import contextlib

import tensorflow as tf
from tensorflow.python.eager import context


def leave_note(key: str, text: str) -> None:
    """Leave a note for tasks that wait for it now or later; leaving it again does nothing."""
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.context().set_config_key_value(key, f"note:{text}")


def wait_for_note(key: str, timeout_seconds: float) -> str | None:
    """Wait until another worker has left this note, and return its text; None if it was not left in time."""
    try:
        note = context.context().get_config_key_value(key, int(timeout_seconds * 1000))
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError, tf.errors.CancelledError):
        return None
    return str(note).removeprefix("note:")
