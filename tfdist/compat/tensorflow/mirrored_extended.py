"""TensorFlow's mirrored strategies, reduced inside the replicas instead of between them.

Private names, read in TensorFlow 2.21.0:

- `MirroredExtended`, `CollectiveAllReduceExtended`: the classes behind a strategy; no public class can change how
  replicas communicate
- `_use_merge_call`: chooses between stopping every replica's trace at a reduction ("merge call", illegal inside
  `tf.cond` and `tf.while_loop`) and a collective in each replica. TensorFlow chooses the collective only for GPUs under
  XLA. It is right everywhere, and accumulation, moving averages and loss scaling need it: they reduce in a condition
- `merge_call_interim`: the module through which Keras' optimizers call `_use_merge_call`
- `_get_cross_device_ops`, `_collective_ops`, `_create_variable`, `_get_variable_creator_initial_value`,
  `_collective_key_base`, `_initialize_local_devices`: see the methods
- `get_update_replica_id`, `SyncOnReadVariable.assign`: tell who assigns, and read back what was assigned
- `record.could_possibly_record`: tells whether a tape could ask for a gradient
- `autograph_artifact`: exempts a method from conversion; the public `do_not_convert` would exempt the function given to
  `Strategy.run` too
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact
from tensorflow.python.distribute import device_util, distribute_lib, distribute_utils, merge_call_interim, values
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.eager import context, record

from tfdist.compat.keras import keras_frames, keras_variables, layer_methods, sharded_optimizer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import coordination_service, new_variables, sparse_sums, tf_data
from tfdist.compat.tensorflow.steps import replica_contexts, static_packs
from tfdist.compat.tensorflow.steps.replica_contexts import owned, packed, told
from tfdist.compat.tensorflow.steps.replica_services import HasServices, Traced, services
from tfdist.errors import UnsupportedError

# The name of a collective is (group key, instance key). TensorFlow numbers groups from the same start in every
# strategy. So a second strategy in a process reuses names that are already bound to other shapes, and every later
# collective fails. Plain TensorFlow strategies start at 0. Each of ours takes a block of its own, far above them.
_KEYS_PER_STRATEGY = 1_000_000
_KEYS_PER_WORKER = 1_000

# The dtypes that collectives carry on every kind of device.
_TRAVELS = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

_key_blocks = itertools.count(1)

#: A decorator of methods that AutoGraph does not convert, although it converts the functions passed to them.
not_converted = autograph_artifact


def local_devices(kinds: tuple[str, ...]) -> list[str]:
    """Return the names of this process's devices of these kinds, in order, without those of other workers."""
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    mine = [spec for spec in specs if spec.device_type in kinds and (spec.task or 0) == this_task()]
    ordered = sorted(mine, key=lambda spec: (kinds.index(spec.device_type), spec.device_index))
    return [f"/device:{spec.device_type}:{spec.device_index}" for spec in ordered]


def abort_collectives(message: str) -> None:
    """Abort every collective of this process; the threads that wait in one get the message."""
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)


def cluster_of_this_process() -> list[str] | None:
    """Return the addresses of the workers between which this process's collectives run; None before there are any."""
    server = context.context()._collective_ops_server_def
    if server is None:
        return None
    tasks = {task: address for job in server.cluster.job for task, address in job.tasks.items()}
    return [tasks[index] for index in sorted(tasks)]


def claim_collective_keys(strategy: tf.distribute.Strategy, *, within_worker: bool) -> None:
    """Give a strategy that is being constructed a block of collective group keys that no other strategy uses."""
    strategy._collective_key_base = new_group_key(within_worker=within_worker)


def new_group_key(*, within_worker: bool) -> int:
    """Return the first of a block of unused collective group keys. All workers must call this in the same order."""
    base = next(_key_blocks) * _KEYS_PER_STRATEGY
    return base + (1 + this_task()) * _KEYS_PER_WORKER if within_worker else base


def this_task() -> int:
    """Return the index of this process in its cluster; 0 without a cluster."""
    return tf.DeviceSpec.from_string(device_util.canonicalize("/device:CPU:0")).task or 0


def _optimizer_outside_replicas() -> bool:
    """Return whether the caller is an optimizer outside of replicas; reductions and merge calls are other callers."""
    asker = next(keras_frames.frames(2, 1))
    return asker.f_globals.get("__name__") == merge_call_interim.__name__ and tf.distribute.in_cross_replica_context()


class ReduceInReplicas(HasServices):
    """Mix-in for TensorFlow's extended strategies: collectives inside replicas, also inside conditions."""

    def all_gather_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all replicas, in their order; every replica must call this."""
        replica_context = tf.distribute.get_replica_context()
        if tf.executing_eagerly():  # replicas of this process run one after the other
            return replica_contexts.own_all_gather(replica_context, tensor)
        if self.services.traced:  # operations of a graph have no order, so each needs a key of its own
            return self.services.traced[replica_context._replica_id].all_gather(tensor, label)
        return self.services.collectives[replica_context._replica_id].all_gather(tensor, key=label)

    def sum_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the sum over replicas, also if the number of rows changes; TensorFlow's own reductions then fail."""
        replica_context = tf.distribute.get_replica_context()
        if tf.executing_eagerly():
            return replica_contexts.own_all_reduce(replica_context)(tf.distribute.ReduceOp.SUM, tensor)
        if self.services.traced:
            return self.services.traced[replica_context._replica_id].all_reduce([tensor], [label])[0]
        return self.services.collectives[replica_context._replica_id].all_reduce([tensor], key=label)[0]

    def all_to_all_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return this replica's part of the rows of each replica, in their order; every replica must call this."""
        replica_context = tf.distribute.get_replica_context()
        mine = replica_context._replica_id
        if not tf.executing_eagerly() and self.services.traced:
            return self.services.traced[mine].all_to_all(tensor, label)
        if not tf.executing_eagerly() and self.services.collectives:
            return self.services.collectives[mine].all_to_all(tensor, key=label)
        return self.all_gather_in_replica(tensor, label)[index_here() :: replicas_here()]

    def reduced_between(self, reduce_op: Any, value: Any, options: Any) -> Any:
        """Return a nest, reduced inside of a replica by `services.traced`."""
        one = self.services.traced[tf.distribute.get_replica_context()._replica_id]

        def sums(sent: list[Any], labels: list[str], keep: bool) -> list[Any]:
            return list(one.all_reduce(sent, labels, keep_duplicate_indices=keep))

        return sparse_sums.reduced_by(sums, reduce_op, value, replicas=one.size, **told(options))

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        results = super()._call_for_each_replica(fn, args, kwargs)  # type: ignore[misc]
        if not tf.executing_eagerly():
            self.services.after_trace()
        return results

    def update(self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True) -> Any:
        """Update a variable as TensorFlow does; call `services.before_update` before an optimizer's update.

        Updates of optimizers are not grouped, unlike those of `tf.Variable.assign`.
        """
        if not group:
            self.services.before_update()
            if local_replica(self._container_strategy()) is None:  # type: ignore[attr-defined]
                keras_optimizer.tell_of_lone_update(self._container_strategy())  # type: ignore[attr-defined]
        return super().update(var, fn, args, kwargs, group)  # type: ignore[misc]

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        keras_optimizer.require_scope_of_slots(self._container_strategy())  # type: ignore[attr-defined]
        return super().colocate_vars_with(colocate_with_variable)  # type: ignore[misc]

    def _packed_sums(self, reduce: Callable[..., Any], reduce_op: Any, value: Any, options: Any) -> Any:
        """Return a nest, reduced in packs by TensorFlow, which fills packs from the last value to the first."""
        sized = packed(options, self.services.bucket_bytes)

        def sums(flat: list[Any]) -> list[Any]:
            if static_packs.can_pack(flat):
                return static_packs.sums(lambda sent, by: list(reduce(reduce_op, sent, by)), flat, sized)
            return list(reduce(reduce_op, owned(flat[::-1]), sized))[::-1]

        return sparse_sums.reduced(value, lambda flat: self._rows_apart(flat, sums))

    def _rows_apart(self, flat: list[Any], sums: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Return sums over replicas: `services.rows` adds rows of tables, and a function adds other values."""
        of_rows = [isinstance(value, tf.IndexedSlices) for value in flat]
        if not any(of_rows) or not self.services.rows or tf.executing_eagerly():
            return sums(flat)
        one = self.services.rows[tf.distribute.get_replica_context()._replica_id]
        gathered = iter(one.all_reduce([value for value, is_rows in zip(flat, of_rows, strict=True) if is_rows]))
        dense = [value for value, is_rows in zip(flat, of_rows, strict=True) if not is_rows]
        summed = iter(sums(dense) if dense else [])
        return [next(gathered if is_rows else summed) for is_rows in of_rows]

    def _use_merge_call(self) -> bool:
        # In eager mode the replicas' threads run one after the other, so a collective would wait for a replica that has
        # not started. A merge call is the only way then, and it works, because conditions are Python's. Outside of
        # replicas no other replica takes part, and an optimizer's arguments are for every copy.
        return bool(tf.executing_eagerly()) and not _optimizer_outside_replicas()

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        # Every replica assigns its own copy, also in a condition. All copies of the iterations are equal, although
        # Keras asks for the first replica's only. A step combines the states of layers, not each assignment.
        if kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ and (
            layer_methods.creating_variable() or keras_optimizer.creating_variable()
        ):
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        self._container_strategy().on_variable()  # type: ignore[attr-defined]
        create = functools.partial(super()._create_variable, next_creator, **kwargs)  # type: ignore[misc]
        # The first trace of a step makes variables, such as the slots of an optimizer. TensorFlow lifts their initial
        # values out of the function, but cannot lift that of a second replica, which is the first replica's value. So
        # the variable is made outside of the function at once, if a callable computes the value.
        if not tf.inside_function() or not callable(kwargs.get("initial_value")):
            return _as_number(_begun_once(create()))
        with tf.init_scope():
            return _as_number(_begun_once(create()))


class MirroredReplicas(ReduceInReplicas, MirroredExtended):
    """`MirroredExtended` whose replicas reduce by collectives. Outside of replicas one device adds and gathers.

    A collective with unequal shapes breaks all later collectives of the process, while an addition only fails. And
    reductions between calls of `run` need no common order, as collectives do.
    """

    def __init__(self, container_strategy: Any, devices: list[str]) -> None:
        super().__init__(container_strategy, devices=devices, cross_device_ops=tf.distribute.ReductionToOneDevice())

    def _get_cross_device_ops(self, value: Any) -> Any:
        # TensorFlow uses collectives wherever it uses no merge calls.
        replica_context = tf.distribute.get_replica_context()
        inside = replica_context is not None and replica_context.strategy is self._container_strategy()
        return self._collective_ops if inside else self._cross_device_ops

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self.services.traced and not tf.executing_eagerly():
            return self.reduced_between(reduce_op, value, options)
        return self._packed_sums(super()._replica_ctx_all_reduce, reduce_op, value, options)


class MultiWorkerReplicas(ReduceInReplicas, CollectiveAllReduceExtended):
    """`CollectiveAllReduceExtended` with any number of CPU replicas per worker, and reductions by collectives."""

    def __init__(self, container_strategy: Any, *, replicas_per_worker: int | None, **kwargs: Any) -> None:
        self._replicas_per_worker = replicas_per_worker
        # TensorFlow starts a server for every strategy, on the same port. A second start under a running server is a
        # race between workers that can end in a hang. The coordination service watches the workers' health from the
        # first server on.
        self._std_server_started = context.context()._collective_ops_server_def is not None
        self._enable_check_health = not self._std_server_started
        if not self._std_server_started:
            coordination_service.watch(kwargs["cluster_resolver"])
        super().__init__(container_strategy, **kwargs)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        # TensorFlow uses all GPUs, or else exactly one CPU device, although a CPU can be split into logical devices.
        del cluster_resolver
        gpus = context.num_gpus()
        kind = "GPU" if gpus else "CPU"
        count = self._replicas_per_worker or gpus or 1
        return tuple(f"{worker_device}/device:{kind}:{index}" for index in range(count)), kind

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        # TensorFlow broadcasts the chief's initial value of each variable, which takes some milliseconds. An optimizer
        # does not need that: its slots begin with constants, and its scalars, such as the learning rate, are arguments.
        optimizer = keras_optimizer.creating_variable()
        if replica_id == 0 and optimizer is not None:
            given = kwargs["initial_value"]
            with tf.device(device):
                value = tf.convert_to_tensor(given() if callable(given) else given, kwargs.get("dtype"))
            if value.shape.rank or sharded_optimizer.makes_parts(optimizer):
                return lambda: value
            kwargs["initial_value"] = value
        create = super()._get_variable_creator_initial_value
        if replica_id == 0:
            return new_variables.chief_value(create, device, kwargs, self.services.compare_variable)
        return create(replica_id, device, primary_var, **kwargs)

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self.services.traced and not tf.executing_eagerly():
            return self.reduced_between(reduce_op, value, options)
        # TensorFlow applies the strategy's own options only in a merge call.
        options = self._communication_options.merge(options)
        return self._packed_sums(super()._replica_ctx_all_reduce, reduce_op, value, options)


def per_replica(replica_values: tuple[Any, ...]) -> Any:
    """Return one nest whose leaves hold a value for each local replica, as `strategy.run` returns them."""
    return distribute_utils.regroup(replica_values, values.PerReplica)


def first_local_value(nest: Any) -> Any:
    """Return the first local replica's nest, given a nest of per-replica values."""
    return distribute_utils.select_replica(0, nest)


def primary(variable: Any) -> Any:
    """Return the copy of a variable on the first local replica, which can be read without other replicas."""
    return variable.values[0] if isinstance(variable, values.DistributedVariable) else variable


def copies(variable: Any) -> list[Any]:
    """Return the copies of a variable on this process's replicas, in their order; or the variable if it has none."""
    return list(variable.values) if isinstance(variable, values.DistributedVariable) else [variable]


def equalise_copies(variable: Any) -> None:
    """Assign the value of the first copy of a variable to the others of this process, in eager mode."""
    if isinstance(variable, values.MirroredVariable):
        first, *others = variable.values
        for other in others:
            other.assign(first)


def values_of_copies(variable: Any) -> list[Any]:
    """Return the value of each local copy of a variable, or the sum if copies are added. All workers must call this."""
    if isinstance(variable, values.SyncOnReadVariable):
        return [tf.convert_to_tensor(variable)]
    return [tf.convert_to_tensor(copy) for copy in copies(variable)]


def assign_locally(variable: Any, value: tf.Tensor) -> None:
    """Set every local copy of a variable. If copies are added up, the first one gets the value and the others zero."""
    if not isinstance(variable, values.SyncOnReadVariable):
        variable.assign(value)
        return
    others = _others(variable)
    for copy in variable.values:
        adds = variable.aggregation == tf.VariableAggregation.SUM
        copy.assign(tf.zeros_like(value) if adds and any(copy is other for other in others) else value)


def _others(variable: Any) -> list[Any]:
    """Return the local copies of a variable but for that of the first of all replicas."""
    number = variable.distribute_strategy.extended._get_replica_id_in_sync_group
    return [copy for index, copy in enumerate(variable.values) if int(number(index))]


def _begun_once(variable: Any) -> Any:
    """Let the sum over a new variable's copies begin at its initial value, which TensorFlow gives to each; return it.

    Keras' metrics begin at zero.
    """
    if isinstance(variable, values.SyncOnReadVariable) and variable.aggregation == tf.VariableAggregation.SUM:
        metric = keras_variables.creator()
        if isinstance(metric, keras.Metric) and not keras_variables.is_of_keras(metric):
            for copy in _others(variable):
                copy.assign(tf.zeros_like(copy))
    return variable


def created_under(variable: tf.Variable, strategy: tf.distribute.Strategy) -> bool:
    """Return whether a variable has a copy on every replica of this strategy."""
    return getattr(variable, "_distribute_strategy", None) is strategy


def is_own(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy was made by the user; False for TensorFlow's default strategy."""
    return strategy is not distribute_lib._get_default_strategy()


def local_values(strategy: tf.distribute.Strategy, nest: Any) -> list[Any]:
    """Return the nest of each local replica, given a nest of per-replica values."""
    count = len(strategy.extended.worker_devices)
    return [distribute_utils.select_replica(index, nest) for index in range(count)]


def replica_index() -> int:
    """Return the number, in the whole group, of the replica that is being traced, as a Python int."""
    replica_context = tf.distribute.get_replica_context()
    return int(replica_context._replica_id_in_sync_group)


def all_reduce_of(replica_context: Any, *, is_differentiable: bool) -> Callable[[Any, list[Any], Any], list[Any]]:
    """Return a function that reduces a list of values over replicas; with a gradient only if a tape could ask for it.

    TensorFlow registers the gradient for as long as the process lives, and with it the graph and the strategy.
    """
    extended = replica_context.strategy.extended
    if extended._use_merge_call() or (is_differentiable and record.could_possibly_record()):
        return replica_contexts.own_all_reduce(replica_context)
    return extended._replica_ctx_all_reduce


def local_replica(strategy: tf.distribute.Strategy) -> int | None:
    """Return the number of the local replica that runs or is traced in this thread; None outside of replicas."""
    replica_context = tf.distribute.get_replica_context()
    return None if replica_context is None or replica_context.strategy is not strategy else replica_context._replica_id


def slices_of_replicas(extended: Any) -> list[int]:
    """Return the number of the local slice of a batch that each local replica has; replicas may share a slice."""
    numbers = [int(extended._get_replica_id_in_sync_group(index)) for index in range(len(extended.worker_devices))]
    return [number - numbers[0] for number in numbers]


def one_of_each(extended: Any) -> list[int]:
    """Return one local replica for each local slice of a batch."""
    slices = slices_of_replicas(extended)
    return [slices.index(each) for each in dict.fromkeys(slices)]


def replica_count(strategy: tf.distribute.Strategy) -> int:
    """Return the number of replicas of all workers, also inside a step, where the strategy itself says 1."""
    return int(strategy.extended._num_replicas_in_sync)


def replicas_here() -> int:
    """Return the number of replicas that take part in a reduction started here; 1 outside of replicas."""
    replica_context = tf.distribute.get_replica_context()
    if replica_context is None:
        return 1
    strategy = replica_context.strategy
    return services(strategy).traced[0].size if services(strategy).is_apart else replica_count(strategy)


def index_here() -> int:
    """Return the index of the replica being traced among those that take part in a reduction started here."""
    replica_context = tf.distribute.get_replica_context()
    own = services(replica_context.strategy)
    return own.traced[replica_context._replica_id].rank if own.is_apart else replica_index()


def traced_here() -> Traced | None:
    """Return the collective that reduces inside the replica being traced; None for TensorFlow's own reductions."""
    replica_context = tf.distribute.get_replica_context()
    traced = services(replica_context.strategy).traced
    return traced[replica_context._replica_id] if traced and not tf.executing_eagerly() else None


def bucket_bytes_here() -> int:
    """Return the number of bytes that the strategy in scope reduces together; 0 if it sets none."""
    return services(tf.distribute.get_strategy()).bucket_bytes


def rows_of_all_replicas(strategy: tf.distribute.Strategy, nest: Any) -> Any:
    """Return the rows of all replicas, in the order of the replicas, on every worker."""
    every = local_values(strategy, nest)
    replicas = [every[index] for index in one_of_each(strategy.extended)]
    if strategy.extended._in_multi_worker_mode():
        return tf.nest.map_structure(lambda value: _gathered(strategy, value), nest, expand_composites=False)
    return tf.nest.map_structure(lambda *rows: rows[0] if len(rows) == 1 else tf_data.joined(*rows), *replicas)


def _gathered(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    first = first_local_value(value)
    if not isinstance(first, tf.Tensor):
        raise UnsupportedError(
            f"predict gave values of type {type(first).__name__}; over several workers rows can be gathered of dense "
            "tensors. Let the model return those."
        )
    if first.dtype == tf.string:
        sent = zip(*map(tf_data.bytes_and_lengths, local_values(strategy, value)), strict=True)
        return tf_data.texts_of(*(strategy.gather(per_replica(one), axis=0) for one in sent))
    if first.dtype in _TRAVELS:
        return strategy.gather(value, axis=0)
    convert = tf.bitcast if first.dtype.is_complex else tf.cast
    carrier = tf.float32 if first.dtype.is_floating else tf.int64
    carried = per_replica(tuple(convert(v, carrier) for v in local_values(strategy, value)))
    return convert(strategy.gather(carried, axis=0), first.dtype)


def _as_number(variable: Any) -> Any:
    """Let a variable be converted to the number or the array that it holds; return the variable."""
    if isinstance(variable, values.DistributedVariable) and not isinstance(variable, _Number):
        kind: Any = type(variable)
        variable.__class__ = _numeric_kind(kind)
    return variable


class _Number:
    """The conversions that a `tf.Variable` of one device has; Python does not find them by `__getattr__`."""

    def __float__(self) -> float:
        return float(self.numpy())  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.numpy())  # type: ignore[attr-defined]

    def __complex__(self) -> complex:
        return complex(self.numpy())  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        return bool(self.numpy())  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.numpy(), dtype)  # type: ignore[attr-defined]


class _ReadWhenAsked:
    """A variable whose copies are added up when it is read. TensorFlow reads it back after each assignment.

    That is a reduction, which workers over a slow network would wait for whenever Keras resets a metric.
    """

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Assign a value; return what `read_value` asks for, outside of replicas the variable itself."""
        variable: Any = super()
        replica = tf.distribute.get_replica_context()
        in_replica = replica is not None and replica.strategy is self.distribute_strategy  # type: ignore[attr-defined]
        if not read_value or in_replica or distribute_lib.get_update_replica_id() is not None:
            return variable.assign(value, use_locking, name, read_value)
        variable.assign(value, use_locking, name, read_value=False)
        return self


@functools.cache
def _numeric_kind(kind: Any) -> Any:
    mixed = (_Number, _ReadWhenAsked) if issubclass(kind, values.SyncOnReadVariable) else (_Number,)
    return type(kind)(kind.__name__, (*mixed, kind), {"__module__": kind.__module__})
