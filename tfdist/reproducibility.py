"""Reproducible training: two runs that give the same bits."""

import os

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.collectives.backends import horovod_job
from tfdist.compat import initialized
from tfdist.errors import ConfigError
from tfdist.variables import STRATEGY

__all__ = ["reproducible"]

_LARGEST_SEED = 2**32 - 1  # NumPy's
# NCCL may choose another algorithm for the same message; a switch that adds up (NVLS, CollNet) promises no order.
_ONE_ALGORITHM = ("NCCL_ALGO", "Ring")
_AUTOTUNE = "HOROVOD_AUTOTUNE"


def reproducible(seed: int) -> None:
    """Make this training give the same bits each time it runs; call it first, with the same seed on all workers.

    Guaranteed: the same program on the same data, with the same number of workers and replicas, the same versions and
    the same hardware, trains to the same weights, bit for bit, under ``mirrored``, ``multi-worker`` and ``ring``, and
    on one device. That takes three things:

        seeds       Python's, NumPy's, TensorFlow's and Keras' random numbers begin from ``seed`` on every worker; masks
                    of Dropout still differ between replicas, because each folds its number into the key
        operations  TensorFlow takes deterministic kernels, and raises where there is none; `tf.data` keeps its order
        reductions  sums over replicas are added in an order that does not depend on arrival: TensorFlow's rings
                    have one, Horovod's with three workers and more if `tfdist build horovod` has built it, and NCCL
                    with NCCL_ALGO=Ring, which is set unless it is set already

    Not promised: the same bits with another number of workers or replicas (sums are rounded in another order, see
    ``tfdist verify``), on other hardware or with another number of cores, with another TensorFlow, Keras or Horovod;
    with asynchronous parameter servers, where the order of updates is the order of arrival; where the program itself
    reads a clock, a directory in the order that the disk gives, or a set of strings (set PYTHONHASHSEED). Deterministic
    kernels can be slower on GPUs.

    Args:
        seed: the seed, from 0 to 4294967295, the same on every worker.

    Raises:
        ConfigError: an object was made already, and has drawn its seeds without this one; ``seed`` is out of range;
            Horovod is set to tune itself (HOROVOD_AUTOTUNE); or the build of Horovod does not fix the order of sums
            over three and more workers.

    Example:
        >>> import tfdist
        >>> tfdist.reproducible(17)                              # doctest: +SKIP
        >>> strategy = tfdist.strategies.from_environment()      # doctest: +SKIP

    Source: TensorFlow's `enable_op_determinism`, and `keras.utils.set_random_seed`; P. Patarasuk, X. Yuan, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations", 2009, for the ring: which worker adds which part when
    follows from their number alone.
    """
    validation.integer("seed", seed, minimum=0, maximum=_LARGEST_SEED)
    made = initialized.what_was_made()
    if made is not None:
        raise ConfigError(
            f"tfdist.reproducible({seed}) comes too late: {made}, with seeds that were not set. Call it before "
            "strategies, datasets, layers and tensors are made; best in the first line after the imports.",
            name="seed",
            received=seed,
        )
    _fix_reductions()
    keras.utils.set_random_seed(int(seed))
    tf.config.experimental.enable_op_determinism()


def _fix_reductions() -> None:
    if os.environ.get(_AUTOTUNE, "0") not in ("", "0"):
        raise ConfigError(
            f"{_AUTOTUNE} is {os.environ[_AUTOTUNE]}: Horovod then changes how it adds up by what it measures, and no "
            "two runs are alike. Unset it, or do without tfdist.reproducible."
        )
    cluster = clusters.from_environment()
    rings = STRATEGY.read(os.environ) == "ring" or cluster.source == "horovodrun"
    if rings and cluster.num_workers > 2 and not horovod_job.fixed_order(cluster.num_workers):
        raise ConfigError(
            f"the ring has {cluster.num_workers} workers, and this build of Horovod adds up in an order that depends "
            "on timing. Build one that does not (tfdist build horovod), or use two workers, or --strategy multi-worker."
        )
    os.environ.setdefault(*_ONE_ALGORITHM)
