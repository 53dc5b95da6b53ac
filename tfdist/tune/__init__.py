"""Find the batch that a machine can take, and the one that pays: behind ``tfdist tune``.

Example:
    >>> import tfdist
    >>> tfdist.tune.batch_size(32)              # another number while `tfdist tune batch` looks for the best
    32
"""

from tfdist.tune.script_batch import batch_size

__all__ = ["batch_size"]
