"""TensorFlow's mirrored strategies, reduced inside the replicas instead of between them.

Private names, read in TensorFlow 2.21.0:

- `MirroredExtended`, `CollectiveAllReduceExtended`: the classes that do a strategy's work; TensorFlow offers no public
  way to subclass a strategy and change how its replicas communicate.
- `_use_merge_call`: chooses between stopping every replica's trace at a reduction ("merge call", illegal inside
  `tf.cond` and `tf.while_loop`) and a collective op in each replica. TensorFlow takes the second only for GPUs under
  XLA; it is right everywhere, and gradient accumulation, moving averages and loss scaling need it, because they
  decide in a condition.
- `_create_variable`, `_get_variable_creator_initial_value`, `_collective_key_base`, `_initialize_local_devices`,
  `_host_cross_device_ops`: see the methods.
"""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_utils, values
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.eager import context

from tfdist.compat import keras_optimizer
from tfdist.errors import UnsupportedError

# A collective is named by (group key, instance key). TensorFlow numbers groups from the same start in every strategy,
# so a second strategy in a process reuses names that are already bound to other shapes, and every later collective
# fails. Plain TensorFlow strategies start at 0; ours take blocks far above them, each its own.
_KEYS_PER_STRATEGY = 1_000_000
_KEYS_PER_WORKER = 1_000

# What collectives carry on every kind of device.
_TRAVELS = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# One buffer for all tensors of a reduction, TensorFlow's default, waits for the last of them and is slow to allocate.
# Packs of 4 MiB were 1.4 to 2.6 times faster on the gradients of ResNet-50.
BYTES_PER_PACK = 4 << 20
_key_blocks = itertools.count(1)


def local_devices(kinds: tuple[str, ...]) -> list[str]:
    """Return the names of this process's devices of these kinds, such as ``/device:CPU:0``, in order.

    In a process that is a worker of a cluster TensorFlow lists the devices of every worker.
    """
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    mine = [spec for spec in specs if spec.device_type in kinds and (spec.task or 0) == this_task()]
    ordered = sorted(mine, key=lambda spec: (kinds.index(spec.device_type), spec.device_index))
    return [f"/device:{spec.device_type}:{spec.device_index}" for spec in ordered]


def abort_collectives(message: str) -> None:
    """Break off every collective of this process; whoever waits in one gets the message."""
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)


def cluster_of_this_process() -> list[str] | None:
    """Return the addresses of the workers among which this process's collectives run, or None before there are any."""
    server = context.context()._collective_ops_server_def
    if server is None:
        return None
    tasks = {task: address for job in server.cluster.job for task, address in job.tasks.items()}
    return [tasks[index] for index in sorted(tasks)]


def claim_collective_keys(strategy: tf.distribute.Strategy, *, within_worker: bool) -> None:
    """Give a strategy that is being constructed a block of collective group keys that no other strategy uses.

    Workers construct their strategies in the same order, so they draw the same numbers.

    Args:
        strategy: before its extended part is made.
        within_worker: the strategy's replicas are all in this process; if the process is a worker of a cluster, its
            peers may
            have such a strategy too, which is another group.
    """
    base = next(_key_blocks) * _KEYS_PER_STRATEGY
    if within_worker:
        base += (1 + this_task()) * _KEYS_PER_WORKER
    strategy._collective_key_base = base


def this_task() -> int:
    """Return the index of this process in its cluster, 0 without one."""
    return tf.DeviceSpec.from_string(device_util.canonicalize("/device:CPU:0")).task or 0


class ReduceInReplicas:
    """Mix-in for TensorFlow's extended strategies: collectives inside replicas, also inside conditions."""

    def _use_merge_call(self) -> bool:
        # Eagerly the replicas' threads run one after the other, so a collective would wait for a replica that has not
        # started: there the merge call is the only way, and conditions are Python's, which it does not mind.
        return bool(context.executing_eagerly())

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        # Keras counts iterations in a variable "of the first replica only", whose assignment is a merge call. Every
        # replica assigns the same value to its copy, so plain copies hold the same numbers and may be assigned in a
        # condition.
        if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA and (
            kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ and keras_optimizer.creating_variable()
        ):
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        self._container_strategy().on_variable()  # type: ignore[attr-defined]
        return super()._create_variable(next_creator, **kwargs)  # type: ignore[misc]


class MirroredReplicas(ReduceInReplicas, MirroredExtended):
    """`MirroredExtended` whose replicas reduce by collectives."""

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return super()._replica_ctx_all_reduce(reduce_op, owned(value), packed(options))


class MultiWorkerReplicas(ReduceInReplicas, CollectiveAllReduceExtended):
    """`CollectiveAllReduceExtended` with any number of CPU replicas per worker, and reductions by collectives."""

    def __init__(self, container_strategy: Any, *, replicas_per_worker: int | None, **kwargs: Any) -> None:
        self._replicas_per_worker = replicas_per_worker
        # TensorFlow starts a server for every strategy, on the same port; starting it again under a running one is a
        # race between workers that can end in a hang. Its health is watched by the coordination service from the
        # first one on.
        self._std_server_started = context.context()._collective_ops_server_def is not None
        self._enable_check_health = not self._std_server_started
        super().__init__(container_strategy, **kwargs)
        # Traced, because eagerly TensorFlow starts a pool of threads for every reduction.
        self._traced_sum = tf.function(self._host_sum, reduce_retracing=True, autograph=False)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        # TensorFlow takes all GPUs, or else exactly one CPU device, although a CPU can be split into logical devices.
        del cluster_resolver
        gpus = context.num_gpus()
        kind = "GPU" if gpus else "CPU"
        count = self._replicas_per_worker or gpus or 1
        return tuple(f"{worker_device}/device:{kind}:{index}" for index in range(count)), kind

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        # TensorFlow broadcasts the chief's initial value of each variable, some milliseconds each. Slots of an
        # optimizer begin with the same constants everywhere; its scalars (the learning rate) are as the user gave them.
        if replica_id == 0 and keras_optimizer.creating_variable():
            given = kwargs["initial_value"]
            with tf.device(device):
                value = tf.convert_to_tensor(given() if callable(given) else given, kwargs.get("dtype"))
            if value.shape.rank:
                return lambda: value
            kwargs["initial_value"] = value
        return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        # TensorFlow heeds the strategy's own options only where replicas meet in a merge call.
        options = self._communication_options.merge(options)
        return super()._replica_ctx_all_reduce(reduce_op, owned(value), packed(options))

    def sum_over_workers(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum of an eager tensor over the workers (one contribution each, whatever their devices)."""
        with tf.device(self._worker_device):
            return self._traced_sum(tf.identity(tensor))

    def _host_sum(self, tensor: tf.Tensor) -> tf.Tensor:
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        with tf.device(self._worker_device):
            tensor = tf.identity(tensor)
            return self._host_cross_device_ops.reduce(tf.distribute.ReduceOp.SUM, tensor, tensor, options=options)


def packed(options: Any) -> Any:
    """Return communication options with a size for packs, which TensorFlow leaves at "all in one" unless told."""
    if options is not None and options.bytes_per_pack:
        return options
    return (options or tf.distribute.experimental.CommunicationOptions()).merge(
        tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BYTES_PER_PACK)
    )


def owned(value: Any) -> Any:
    """Give a captured function input an op of its own: a collective on a bare input has no device to go to."""
    return tf.nest.map_structure(
        lambda v: v if isinstance(v, tf.IndexedSlices) else tf.identity(v), value, expand_composites=False
    )


def per_replica(replica_values: tuple[Any, ...]) -> Any:
    """Return one nest whose leaves hold a value per local replica, as `strategy.run` hands them out."""
    return distribute_utils.regroup(replica_values, values.PerReplica)


def first_local_value(nest: Any) -> Any:
    """Return the nest of the first local replica from a nest of per-replica values."""
    return distribute_utils.select_replica(0, nest)


def primary(variable: Any) -> Any:
    """Return the copy of a variable on the first local replica: to read it needs no other replica, and no worker."""
    return variable.values[0] if isinstance(variable, values.DistributedVariable) else variable


def assign_locally(variable: Any, value: tf.Tensor, *, is_first: bool) -> None:
    """Give every local copy of a variable a value; of what replicas add up, the first of all gets it and others zero.

    Args:
        variable: a TensorFlow variable, of a strategy or not.
        value: the new one.
        is_first: whether the first local replica is the first of all.
    """
    if not isinstance(variable, values.SyncOnReadVariable):
        variable.assign(value)
        return
    for index, copy in enumerate(variable.values):
        adds = variable.aggregation == tf.VariableAggregation.SUM
        copy.assign(tf.zeros_like(value) if adds and not (is_first and index == 0) else value)


def created_under(variable: tf.Variable, strategy: tf.distribute.Strategy) -> bool:
    """Return whether a variable has a copy on every replica of this strategy."""
    return getattr(variable, "_distribute_strategy", None) is strategy


def assigned(variables: list[Any]) -> list[Any]:
    """Return those Keras variables that the function being traced does more with than read; all of them eagerly."""
    if tf.executing_eagerly():
        return variables
    graph = tf.compat.v1.get_default_graph()
    captured = {id(external): internal for external, internal in graph.captures}

    def is_assigned(variable: Any) -> bool:
        copy = variable.value._get_on_device_or_primary()
        internal = captured.get(id(copy.handle))
        return internal is not None and any(op.type != "ReadVariableOp" for op in internal.consumers())

    return [variable for variable in variables if is_assigned(variable)]


def local_values(strategy: tf.distribute.Strategy, nest: Any) -> list[Any]:
    """Return the nest of each local replica from a nest of per-replica values."""
    count = len(strategy.extended.worker_devices)
    return [distribute_utils.select_replica(index, nest) for index in range(count)]


def replica_index() -> int:
    """Return the number, in the whole group, of the replica whose step is being traced: a Python int."""
    replica_context = tf.distribute.get_replica_context()
    return int(replica_context._replica_id_in_sync_group)


def replica_count(strategy: tf.distribute.Strategy) -> int:
    """Return the number of replicas over all workers, also inside a step (where the strategy says 1)."""
    return int(strategy.extended._num_replicas_in_sync)


def global_seed() -> int | None:
    """Return the seed set by `tf.random.set_seed`, or None."""
    return context.global_seed()


def rows_of_all_replicas(strategy: tf.distribute.Strategy, nest: Any) -> Any:
    """Return the rows that all replicas computed, in the order of the replicas, on every worker."""
    replicas = local_values(strategy, nest)
    if strategy.extended._in_multi_worker_mode():
        return tf.nest.map_structure(lambda value: _gathered(strategy, value), nest, expand_composites=False)
    return tf.nest.map_structure(lambda *rows: rows[0] if len(rows) == 1 else joined(*rows), *replicas)


def _gathered(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    first = first_local_value(value)
    if not isinstance(first, tf.Tensor) or not (
        first.dtype.is_floating or first.dtype.is_integer or first.dtype.is_bool
    ):
        raise UnsupportedError(
            f"predict gave {getattr(first, 'dtype', type(first).__name__)!r} values of type {type(first).__name__}; "
            "over several workers rows can be gathered of numbers and bools in dense tensors. Let the model return "
            "those."
        )
    if first.dtype in _TRAVELS:
        return strategy.gather(value, axis=0)
    carrier = tf.float32 if first.dtype.is_floating else tf.int64
    carried = per_replica(tuple(tf.cast(v, carrier) for v in local_values(strategy, value)))
    return tf.cast(strategy.gather(carried, axis=0), first.dtype)


def joined(*rows: Any) -> Any:
    """Return the rows of several tensors of one kind as one tensor; scalars are stacked."""
    if isinstance(rows[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(rows))
    return tf.stack(rows) if rows[0].shape.rank == 0 else tf.concat(rows, axis=0)
