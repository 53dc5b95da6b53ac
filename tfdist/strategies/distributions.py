"""The strategy that does on TensorFlow what a distribution of Keras asks for.

On this backend Keras keeps a distribution that it was given and trains on one device all the same, without a word.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.strategies.mirrored import MirroredStrategy

__all__ = ["from_distribution"]


def from_distribution(
    distribution: keras.distribution.DataParallel | None = None, **options: Any
) -> tf.distribute.Strategy:
    """Return the strategy for a distribution: for `keras.distribution.DataParallel` a replica on each of its devices.

    Batches are global, as with Keras: each replica takes its rows of them. `auto_shard_dataset` changes nothing, since
    this process has all of the data.

    Args:
        distribution: of one axis; None takes the one that `keras.distribution.set_distribution` was given.
        **options: of `MirroredStrategy`, beside its devices.

    Raises:
        ConfigError: none is set; its mesh has several axes; several workers are to train, for which
            `from_environment` has the strategy.
        ConfigTypeError: it is no distribution.
        UnsupportedError: `keras.distribution.ModelParallel`, which tfdist does not have.

    Example:
        >>> devices = keras.distribution.list_devices()
        >>> strategy = from_distribution(keras.distribution.DataParallel(devices=devices))
        >>> strategy.num_replicas_in_sync == len(devices)
        True
    """
    if distribution is None:
        distribution = keras.distribution.distribution()
    if distribution is None:
        raise ConfigError(
            "no distribution was given, and none is set. Pass one, such as keras.distribution.DataParallel(), or call "
            "keras.distribution.set_distribution first."
        )
    if isinstance(distribution, keras.distribution.ModelParallel):
        raise UnsupportedError(
            "keras.distribution.ModelParallel splits weights over devices, which tfdist does not do; every replica has "
            "all of them. Use keras.distribution.DataParallel, or, for large embedding tables, "
            "tfdist.strategies.ParameterServerStrategy."
        )
    if not isinstance(distribution, keras.distribution.DataParallel):
        raise ConfigTypeError(
            f"distribution is {validation.shown(distribution)} ({type(distribution).__name__}); it must be one, "
            "such as keras.distribution.DataParallel()."
        )
    mesh = distribution.device_mesh
    if mesh.devices.ndim != 1:
        raise ConfigError(
            f"the mesh of the distribution has the axes {list(mesh.axis_names)}; data parallelism has one. Make it "
            f"keras.distribution.DeviceMesh(({mesh.devices.size},), ['batch'])."
        )
    cluster = clusters.from_environment()
    if cluster.num_workers > 1:
        raise ConfigError(
            f"{cluster.source} gives {cluster.num_workers} workers, and a distribution has the devices of one process. "
            "Use tfdist.strategies.from_environment()."
        )
    return MirroredStrategy(devices=[str(device) for device in mesh.devices], **options)
