"""The end of the process: iterators that a script still holds are ended while other threads get Python's lock.

Those of `fit`, `evaluate` and `predict` end with their call. What a loop of the user's own holds, or a call that raised
before tfdist knew of it, would be freed in Python's last collection, which may wait for ever
(`tfdist.compat.tensorflow.tf_data`).
"""

import atexit
import functools
import logging
import os

from tfdist.compat.tensorflow import tf_data as tf_data

END_SECONDS = 10.0  # for elements that are being made when the script ends

_log = logging.getLogger("tfdist")


@functools.cache
def end_inputs_with_process() -> None:
    """End every iterator over a dataset when this process ends; once is enough."""
    atexit.register(_end_inputs, os.getpid())


def _end_inputs(process: int) -> None:
    if os.getpid() != process:
        return  # a fork has none of the threads that iterators wait for
    if count := tf_data.end(tf_data.alive(), seconds=END_SECONDS):
        _log.warning(
            "tfdist: %d input(s) still make an element %g s after the script has ended; the process ends without them.",
            count,
            END_SECONDS,
        )
