"""The strategy for a distribution of Keras, which Keras on TensorFlow accepts but silently trains on one device."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.compat.keras import keras_distributions as keras_distributions
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.strategies.mirrored import MirroredStrategy
from tfdist.strategies.model_parallel import ModelParallelStrategy
from tfdist.variables import LAYOUTS

__all__ = ["from_distribution"]


def from_distribution(
    distribution: keras.distribution.DataParallel | None = None, **options: Any
) -> tf.distribute.Strategy:
    """Return the strategy for a distribution.

    For `keras.distribution.DataParallel` it is a `MirroredStrategy` with a replica on each of its devices. For
    `ModelParallel` it is a `ModelParallelStrategy` with a device at each place of its mesh: the devices of this process
    that the mesh names, or the first devices of several processes. Batches are global, as with Keras: each replica
    takes its rows of them. `auto_shard_dataset` changes nothing, because every process is given all of the data.

    Args:
        distribution: None takes the one given to `keras.distribution.set_distribution`.
        **options: of the strategy, except its devices, mesh and layouts.

    Raises:
        ConfigError: none is set; a `DataParallel` has several axes, or there are several workers (use
            `from_environment`); a `ModelParallel` has more places than processes and devices.
        ConfigTypeError: it is no distribution.

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
            "keras.distribution.set_distribution first.",
            name="distribution",
            received=None,
        )
    if isinstance(distribution, keras.distribution.ModelParallel):
        return ModelParallelStrategy(
            **_options_of(distribution, clusters.from_environment()),
            **options,
        )
    if not isinstance(distribution, keras.distribution.DataParallel):
        raise ConfigTypeError(
            f"distribution is {validation.shown(distribution)} ({type(distribution).__name__}); it must be one, "
            "such as keras.distribution.DataParallel().",
            name="distribution",
            received=validation.shown(distribution),
        )
    mesh = distribution.device_mesh
    if mesh.devices.ndim != 1:
        raise ConfigError(
            f"the mesh of the distribution has the axes {list(mesh.axis_names)}; data parallelism has one. Make it "
            f"keras.distribution.DeviceMesh(({mesh.devices.size},), ['batch']).",
            name="distribution",
            received=list(mesh.axis_names),
        )
    cluster = clusters.from_environment()
    if cluster.num_workers > 1:
        raise ConfigError(
            f"{cluster.source} gives {cluster.num_workers} workers, and a distribution has the devices of one process. "
            "Use tfdist.strategies.from_environment()."
        )
    return MirroredStrategy(devices=[str(device) for device in mesh.devices], **options)


def is_split() -> bool:
    """Return whether `keras.distribution.set_distribution` was given a distribution that splits models."""
    return isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel)


def options_of_model_parallel(layout_map: Any, environ: Mapping[str, str], cluster: clusters.Cluster) -> dict[str, Any]:
    """Return options of layouts: from an argument, from Keras' distribution, or from a variable."""
    distribution = keras.distribution.distribution()
    if layout_map is not None:
        return {"layout_map": layout_map}
    if isinstance(distribution, keras.distribution.ModelParallel):
        return _options_of(distribution, cluster)
    return {"layout_map": LAYOUTS.read(environ) or None}


def _options_of(distribution: keras.distribution.ModelParallel, cluster: clusters.Cluster) -> dict[str, Any]:
    options = {
        "layout_map": keras_distributions.layout_map(distribution),
        "batch_dim_name": distribution.batch_dim_name,
    }
    if cluster.num_workers == 1:
        options["devices"] = [str(device) for device in distribution.device_mesh.devices.flatten()]
    return options
