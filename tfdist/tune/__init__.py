"""Find the batch that a machine can take, and the one that pays: behind ``tfdist tune``.

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
    """Return the examples of a batch on one replica: ``default``, or what `tfdist tune batch` tries at the moment.

    The global batch, which `fit` takes, is as many times larger as there are replicas.

    Args:
        default: what the script takes otherwise, at least 1.
        environ: variables to read, `os.environ` by default.
    Returns:
        TFDIST_BATCH_SIZE where it is set, else ``default``.
    Raises:
        ConfigError: one of them is no positive integer.

    Example:
        >>> batch_size(32, environ={})
        32
        >>> batch_size(32, environ={"TFDIST_BATCH_SIZE": "128"})
        128
    """
    validation.integer("default", default, minimum=1)
    given = BATCH_SIZE.read(os.environ if environ is None else environ)
    return int(default) if given is None else given
