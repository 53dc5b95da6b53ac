"""Batches that are Poisson samples, as differentially private training needs them."""

import functools
import itertools
import os
import secrets
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.cluster import job_key
from tfdist.compat.tensorflow.tf_data import Wrapped
from tfdist.data.reading.read_dataset import Reading
from tfdist.errors import ConfigError
from tfdist.variables import RESTARTS

_SEEDS = 2**31 - 1  # TensorFlow takes seeds modulo this number
_made = itertools.count()  # samples without a seed, which all workers of a job make in the same order
_as_it_is = tf.autograph.experimental.do_not_convert


class PoissonBatches(Wrapped):
    """A `tf.data.Dataset` whose batches contain each example with the same probability, independently of all others.

    Args:
        examples: the number of examples.
        global_batch_size: the expected number of examples of a batch.
        seed: the seed of the samples.
        take: a function that makes a batch from the numbers of its examples, int64 ``[rows]``, and a key for random
            numbers.

    Attributes:
        examples: the number of examples.
        rate: the probability that a batch contains an example.
        steps: the number of batches in one iteration.

    Example:
        >>> import numpy as np, tfdist
        >>> tfdist.data.poisson(np.zeros((100, 4)), global_batch_size=10).steps
        10
    """

    def __init__(self, examples: int, global_batch_size: int, seed: int, take: Any) -> None:
        self.examples = examples
        self.rate = global_batch_size / examples
        self.steps = -(-examples // global_batch_size)
        # tf.data seeds have 31 bits, in which a search finds a secret: the others go into the key of each batch
        further, self._seed = divmod(seed, _SEEDS)
        self._further = further & (1 << 63) - 1
        self._take = take
        super().__init__(self._batches)

    def _batches(self) -> tf.data.Dataset:
        # like a seeded shuffle: each iteration has another order, and a new run of the program the same ones
        keys = tf.data.Dataset.random(seed=self._seed, rerandomize_each_iteration=True).batch(2, drop_remainder=True)

        @_as_it_is
        def sample(key: tf.Tensor) -> Any:
            key = tf.bitwise.bitwise_xor(key, tf.constant(self._further, tf.int64))
            drawn = tf.random.stateless_uniform([self.examples], key, dtype=tf.float64)
            return self._take(tf.where(drawn < self.rate)[:, 0], key)

        return keys.take(self.steps).map(sample, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)

    def cardinality(self) -> tf.Tensor:
        """Return the number of batches, an int64 scalar."""
        return tf.constant(self.steps, tf.int64)

    def __len__(self) -> int:
        return self.steps


def poisson(data: Any, *, global_batch_size: int | None = None, seed: int | None = None) -> PoissonBatches:
    """Sample batches from examples by Poisson sampling, on which the privacy of `tfdist.privacy.make_private` rests.

    Each example is in each batch with the probability ``global_batch_size / examples``, independently of all others. So
    batches differ in size, and one may be empty. An iteration has as many batches as an epoch; in it an example may
    occur several times, or never.

    Guaranteed: a seed gives the same batches on any number of workers, and each time the program runs.

    Args:
        data: an array, or a tuple or dict of arrays whose batches `fit` takes, such as ``(x, y)``; or a result of
            `tfdist.data.read`, whose order and tail do not matter.
        global_batch_size: the expected number of examples of a batch, over all replicas. Default: the batch size of the
            reading.
        seed: the seed of the samples. Default: a secret one, which the workers of `tfdist run` share; those of other
            launchers need the same seed. A seed reveals which examples each batch has, so the accounted privacy does
            not hold against anyone who knows it.
    Returns:
        A dataset of batches of varying size.
    Raises:
        ConfigError: arrays have different numbers of rows, or fewer rows than the batch size.

    Example:
        >>> import numpy as np, tfdist
        >>> batches = tfdist.data.poisson((np.zeros((100, 4)), np.arange(100)), global_batch_size=10, seed=7)
        >>> batches.rate, len(batches), [len(y) for x, y in batches][:5]
        (0.1, 10, [9, 10, 10, 6, 10])
    """
    seed = _secret_seed() if seed is None else validation.integer("seed", seed, minimum=0)
    if isinstance(data, Reading):
        examples = data.population
        take = data.numbered
        global_batch_size = data.global_batch_size if global_batch_size is None else global_batch_size
    else:
        tensors = tf.nest.map_structure(_tensor, data)
        examples = _rows(tensors)
        take = functools.partial(_gathered, tensors)
    size = validation.integer(
        "global_batch_size", global_batch_size, minimum=1, hint="Pass the expected examples of a step: 64."
    )
    if size > examples:
        raise ConfigError(
            f"global_batch_size is {size}, and there are {examples} examples; the expected size of a sample must not "
            "be larger.",
            name="global_batch_size",
            received=size,
        )
    return PoissonBatches(examples, size, seed, take)


def _secret_seed() -> int:
    key = job_key.from_environment(os.environ)
    if key is None:
        return secrets.randbits(62)
    which = [str(RESTARTS.read(os.environ)), str(next(_made))]  # a repeated step has another sample
    return int.from_bytes(job_key.derived(key, "samples", which)[:8], "big") >> 2


def _tensor(leaf: Any) -> tf.Tensor:
    found = tf.convert_to_tensor(np.asarray(leaf) if isinstance(leaf, list) else leaf)
    if found.shape.rank == 0:
        raise ConfigError(
            f"data has {validation.shown(leaf)}, which has no rows; each array must have one for each example.",
            name="data",
            received=validation.shown(leaf),
        )
    return found


def _rows(tensors: Any) -> int:
    counts = [int(leaf.shape[0]) for leaf in tf.nest.flatten(tensors)]
    if len(set(counts)) != 1:
        raise ConfigError(
            f"arrays of data have {', '.join(map(str, counts)) or 'no'} rows; each must have one for each example.",
            name="data",
            received=counts,
        )
    return counts[0]


def _gathered(tensors: Any, numbers: tf.Tensor, key: tf.Tensor) -> Any:
    del key  # nothing is augmented
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, numbers), tensors)
