"""Strategies by name, from a distribution of Keras, or as the environment asks."""

import inspect
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import strategies, validation
from tfdist.cluster import strategy_table
from tfdist.cluster.mesh import Mesh
from tfdist.compat.keras import keras_distributions
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.strategies import local_replicas
from tfdist.strategies.mirrored import MirroredStrategy
from tfdist.strategies.model_parallel import ModelParallelStrategy
from tfdist.training import call_ends
from tfdist.training.strategy_mixin import no_shares
from tfdist.variables import (
    CHUNKS,
    COLLECTIVES,
    LAYOUTS,
    LOCAL_SERVERS,
    MAX_STALENESS,
    MESH,
    MICROBATCHES,
    REPLICAS_PER_WORKER,
    SCHEDULE,
    SHARDING_STAGE,
    SHARES,
    STAGES,
    STRATEGY,
    SYNCHRONIZATION,
)

__all__ = ["create", "from_distribution", "from_environment", "use_logical_cpus"]


def create(name: str, **options: Any) -> tf.distribute.Strategy:
    """Return a new strategy by its registered name.

    Args:
        name: a name that `tfdist run --strategy` takes, such as ``"mirrored"``.
        **options: options of the strategy's class.

    Raises:
        ConfigError: no strategy has that name, or the strategy takes no such option.

    Example:
        >>> create("mirrored", devices=["CPU:0"]).num_replicas_in_sync
        1
    """
    entry = strategy_table.get(name)
    if options.get("synchronization") is not None and not entry.may_meet_seldom:
        raise _cannot_meet_seldom(name, options["synchronization"])
    strategy_class = getattr(strategies, entry.class_name)
    try:
        return strategy_class(**options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            known = ", ".join(list(inspect.signature(strategy_class).parameters))
            raise ConfigError(
                f"strategy {name!r} was given {options!r}: {error}. It takes {known}; leave the others out.",
                name=name,
                received=options,
            ) from error
        raise


def from_environment(
    environ: Mapping[str, str] | None = None, *, loss_reduction: str = "detect", layout_map: Any = None
) -> tf.distribute.Strategy:
    """Return the strategy that `tfdist run` asked for, or else the one that fits the cluster.

    ``TFDIST_STRATEGY`` names the strategy. Without it, workers started by horovodrun get the ring, a cluster with
    parameter servers gets parameter-server, a `keras.distribution.ModelParallel` that is set gets model-parallel,
    several workers get multi-worker, and one process gets mirrored over its devices. The other variables are:

        TFDIST_REPLICAS_PER_WORKER   number of replicas in this process: GPUs, or else as many logical CPU devices
        TFDIST_COLLECTIVES           the backend of multi-worker and sharded-data-parallel
        TFDIST_SYNCHRONIZATION       the synchronization schedule of multi-worker or ring, see `LocalSGD`
        TFDIST_SHARDING_STAGE        the sharding stage of sharded-data-parallel, or of a pipeline stage's replicas
        TFDIST_SHARES                each replica's part of a batch, such as ``3,1``
        TFDIST_MAX_STALENESS         the bound of staleness for parameter-server: a number, or "none", the default
        TFDIST_LOCAL_SERVERS         number of servers to start on this host, with TFDIST_REPLICAS_PER_WORKER workers,
                                     if the cluster has no parameter servers
        TFDIST_MESH                  the mesh of model-parallel or pipeline, such as ``batch=2,model=2`` or
                                     ``data=2,pipeline=2,model=2``
        TFDIST_LAYOUTS               the layouts of weights; may be "auto"

    Args:
        environ: variables to read, `os.environ` by default.
        loss_reduction: "detect", "mean" or "sum", as for the strategies' classes.
        layout_map: the layouts of `ModelParallelStrategy` and `PipelineStrategy`; other strategies keep weights whole.
            None takes ``TFDIST_LAYOUTS`` or, for `ModelParallelStrategy`, the `keras.distribution.ModelParallel` given
            to `keras.distribution.set_distribution`.
    Raises:
        ConfigError: the variables are malformed or contradict each other.

    Example:
        >>> type(from_environment({})).__name__
        'MirroredStrategy'
    """
    environ = os.environ if environ is None else environ
    strategy = _from_environment(environ, loss_reduction, layout_map)
    call_ends.expect_use(strategy)
    return strategy


def _from_environment(environ: Mapping[str, str], loss_reduction: str, layout_map: Any) -> tf.distribute.Strategy:
    cluster = clusters.from_environment(environ)
    is_split = isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel)
    name = STRATEGY.read(environ) or _implied_by(cluster, is_split=is_split)
    entry = strategy_table.get(name)
    synchronization = SYNCHRONIZATION.read(environ)
    if synchronization and not entry.may_meet_seldom:
        raise _cannot_meet_seldom(name, synchronization)
    shares = SHARES.read(environ)
    if entry.processes == "chief":
        if shares is not None:
            raise no_shares(shares)
        return create(name, cluster=cluster, loss_reduction=loss_reduction, **_options_of_a_chief(environ))
    if entry.processes == "one" and cluster.num_workers > 1:
        raise ConfigError(
            f"strategy {name!r} runs in one process, and {cluster.source} gives {cluster.num_workers} workers. Start "
            "one, with --replicas-per-worker for its devices, or choose 'multi-worker'.",
            name=name,
            received=cluster.num_workers,
        )
    replicas = REPLICAS_PER_WORKER.read(environ)
    gpus = len(tf.config.list_physical_devices("GPU"))
    if replicas is not None and not gpus:
        use_logical_cpus(replicas)
    if entry.processes == "one":
        kind = "GPU" if gpus else "CPU"
        devices = None if replicas is None else [f"{kind}:{index}" for index in range(replicas)]
        return create(name, devices=devices, loss_reduction=loss_reduction, shares=shares)
    options: dict[str, Any] = {"shares": shares}
    if synchronization:
        options["synchronization"] = synchronization
    if name == "model-parallel":
        options |= _options_of_model_parallel(layout_map, environ, cluster)
    if entry.collectives and COLLECTIVES.read(environ):
        options["collectives"] = COLLECTIVES.read(environ)
    if name == "sharded-data-parallel":
        options["stage"] = SHARDING_STAGE.read(environ)
    if name == "pipeline":
        options |= _options_of_a_pipeline(environ, layout_map)
    return create(name, cluster=cluster, replicas_per_worker=replicas, loss_reduction=loss_reduction, **options)


def _cannot_meet_seldom(name: str, synchronization: Any) -> ConfigError:
    able = " or ".join(repr(one) for one in strategy_table.names() if strategy_table.get(one).may_meet_seldom)
    return ConfigError(
        f"synchronization is {synchronization!r}, and the replicas of strategy {name!r} share weights or hold parts of "
        f"them, so they meet in every step. Choose {able}, whose workers have weights of their own, or leave "
        "synchronization out.",
        name="synchronization",
        received=synchronization,
    )


def _options_of_a_chief(environ: Mapping[str, str]) -> dict[str, Any]:
    given = {
        "max_staleness": MAX_STALENESS.read(environ),
        "local_workers": REPLICAS_PER_WORKER.read(environ),
        "local_servers": LOCAL_SERVERS.read(environ),
    }
    return {name: value for name, value in given.items() if value is not None}


def _options_of_a_pipeline(environ: Mapping[str, str], layout_map: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    mesh = MESH.read(environ)
    if mesh and "model" in Mesh.parse(mesh, name=MESH.name).names:  # else weights are whole
        options["layout_map"] = LAYOUTS.read(environ) or None if layout_map is None else layout_map
    given = {
        "schedule": SCHEDULE.read(environ) or None,
        "shard_optimizer": SHARDING_STAGE.read(environ),
        "stages": tuple(name.strip() for name in STAGES.read(environ).split(",")) if STAGES.read(environ) else None,
        "microbatches": MICROBATCHES.read(environ),
        "chunks": CHUNKS.read(environ),
    }
    return options | {name: value for name, value in given.items() if value is not None}


def _implied_by(cluster: clusters.Cluster, *, is_split: bool) -> str:
    if cluster.source == "horovodrun":
        return "ring"
    if cluster.parameter_servers:
        return "parameter-server"
    if is_split:
        return "model-parallel"
    return "multi-worker" if cluster.num_workers > 1 else "mirrored"


def use_logical_cpus(count: int) -> None:
    """Split the CPU into logical devices ``CPU:0`` .. ``CPU:count-1``, each of which can be a replica.

    This is for trying a strategy on a machine without GPUs; the devices share the machine's cores and memory. If there
    are no more cores than devices, TensorFlow gets one thread more than devices, unless the number of threads is set.

    Args:
        count: the number of devices, at least 1.
    Raises:
        ConfigError: TensorFlow has already started in this process with another number.

    Example:
        >>> use_logical_cpus(2)                                # doctest: +SKIP
        >>> strategy = tfdist.strategies.MirroredStrategy()    # doctest: +SKIP
    """
    count = validation.integer("count", count, minimum=1)
    local_replicas.ensure_threads(count)
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        present = len(tf_strategies.local_devices(("CPU",)))
        if present != count:
            raise ConfigError(
                f"use_logical_cpus({count}): TensorFlow has started in this process with "
                f"{validation.counted(present, 'CPU device')}, which cannot be changed any more. Call it, or make the "
                "strategy that calls it, before the first tensor, variable or dataset.",
                name="use_logical_cpus",
                received=count,
            ) from None


def from_distribution(
    distribution: keras.distribution.DataParallel | None = None, **options: Any
) -> tf.distribute.Strategy:
    """Return the strategy for a distribution of Keras.

    `keras.distribution.DataParallel` becomes a `MirroredStrategy` with a replica on each of its devices.
    `ModelParallel` becomes a `ModelParallelStrategy` with a device at each place of its mesh: the devices of this
    process that the mesh names, or the first devices of several processes. Batches are global, as with Keras: each
    replica takes its rows of them. `auto_shard_dataset` has no effect, because every process is given all of the data.

    Args:
        distribution: the distribution; None takes the one given to `keras.distribution.set_distribution`.
        **options: options of the strategy, except its devices, mesh and layouts.

    Raises:
        ConfigError: no distribution is set; a `DataParallel` has several axes, or there are several workers (use
            `from_environment`); a `ModelParallel` has more places than processes and devices.
        ConfigTypeError: ``distribution`` is not a distribution of Keras.

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
        return ModelParallelStrategy(**_options_of(distribution, clusters.from_environment()), **options)
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


def _options_of_model_parallel(
    layout_map: Any, environ: Mapping[str, str], cluster: clusters.Cluster
) -> dict[str, Any]:
    """Return the options for layouts, taken from an argument, from Keras' distribution, or from a variable."""
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
