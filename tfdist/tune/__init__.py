"""The search behind ``tfdist tune``: the largest batch that fits a machine, and the fastest one.

Example:
    >>> import tfdist
    >>> tfdist.tune.batch_size(32)              # another number while `tfdist tune batch` looks for the best
    32
"""

import os
from collections.abc import Mapping

from tfdist import validation
from tfdist.variables import BATCH_SIZE

__all__ = ["batch_size"]


def batch_size(default: int, environ: Mapping[str, str] | None = None) -> int:
    """Return the batch size of one replica: ``default``, or the size that `tfdist tune batch` is trying.

    The global batch, which `fit` takes, is this size times the number of replicas.

    Args:
        default: the number of examples outside of `tfdist tune batch`, at least 1.
        environ: the variables to read, `os.environ` by default.
    Returns:
        TFDIST_BATCH_SIZE if it is set, else ``default``.
    Raises:
        ConfigError: either of them is not a positive integer.

    Example:
        >>> batch_size(32, environ={})
        32
        >>> batch_size(32, environ={"TFDIST_BATCH_SIZE": "128"})
        128
    """
    validation.integer("default", default, minimum=1)
    given = BATCH_SIZE.read(os.environ if environ is None else environ)
    return int(default) if given is None else given
