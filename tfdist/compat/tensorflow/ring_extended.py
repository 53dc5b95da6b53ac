"""TensorFlow's mirrored strategy over processes that reduce by a collective of tfdist.

Private names, read in TensorFlow 2.21.0: `MirroredExtended` and its methods, which override or call those of
TensorFlow; no public way gives a strategy another collective. The counterpart in TensorFlow is
`CollectiveAllReduceExtended`.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, cross_device_utils, distribute_utils, input_util, values
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow import new_variables
from tfdist.compat.tensorflow.mirrored_extended import ReduceInReplicas, one_of_each, replica_index
from tfdist.compat.tensorflow.sparse_sums import as_rows, mean_of, of_rows, reduced_by
from tfdist.compat.tensorflow.steps.replica_contexts import owned, packed, told
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class RingReplicas(ReduceInReplicas, MirroredExtended):
    """`MirroredExtended` with the replicas of all processes.

    Replicas of one process reduce by TensorFlow's collectives. The first of them exchanges the sum with other
    processes.
    """

    def __init__(
        self,
        container_strategy: Any,
        *,
        devices: Sequence[str],
        collective: Any,
        waiting: Callable[[str], AbstractContextManager[None]],
        services: ReplicaServices,
        everybody: Any = None,
    ) -> None:
        self._collective = collective
        self._everybody = collective if everybody is None else everybody
        self._waiting = waiting
        self.services = services
        super().__init__(container_strategy, devices=list(devices))

    # Replicas and processes.

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) * self._collective.size

    def _get_replica_id_in_sync_group(self, replica_id: Any) -> Any:
        return self._collective.rank * len(self._devices) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group - self._collective.rank * len(self._devices)

    def _in_multi_worker_mode(self) -> bool:
        return self._collective.size > 1

    @property
    def _task_id(self) -> int:
        """The number of this process; users' code may name the files of a process by it, as TensorFlow's guide does."""
        return int(self._collective.rank)

    @property
    def experimental_between_graph(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints that others can read."""
        return self._collective.rank == 0

    @property
    def should_save_summary(self) -> bool:
        return self._collective.rank == 0

    # Variables: every process starts from the value of the first process.

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        if replica_id > 0:
            return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)

        path = keras_variables.path_of_new_variable(kwargs.get("name") or "a variable")

        def initial_value() -> tf.Tensor:
            value = new_variables.first_value(kwargs["initial_value"], kwargs.get("dtype"))
            what = f"the initial value of {path} {value.dtype.name} {value.shape}"
            with tf.device(device), self._waiting(what):
                return self._everybody.broadcast(value, what)

        return initial_value

    # Reductions inside a replica.

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if tf.executing_eagerly():  # a merge call: replicas of this process run one after the other
            return tf.distribute.StrategyExtended._replica_ctx_all_reduce(self, reduce_op, value, options)
        if self.services.is_apart:
            return self.reduced_between(reduce_op, value, options)

        def sums(sent: list[Any], labels: list[str], keep: bool) -> list[Any]:
            between = functools.partial(self._collective.all_reduce, labels=labels, keep_duplicate_indices=keep)
            if len(self._devices) == 1:
                return between(sent)
            carried = [self._collective.carried(value, keep_duplicate_indices=keep) for value in sent]
            return self._sums_of_several(carried, between, options)

        return reduced_by(sums, reduce_op, value, replicas=self._num_replicas_in_sync, **told(options))

    def all_gather_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all replicas; the first replica of each process exchanges them with other processes."""
        if tf.executing_eagerly() or self.services.is_apart:
            return super().all_gather_in_replica(tensor, label)
        if len(self._devices) == 1:
            return self._collective.all_gather(tensor, label)
        rows = super().all_gather_in_replica(tensor, label)
        return self._rows_of_first(lambda: self._collective.all_gather(rows, label), rows, label)

    def sum_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the sum over replicas; the first replica of each process exchanges it with other processes."""
        if tf.executing_eagerly() or self.services.is_apart:
            return super().sum_in_replica(tensor, label)
        if len(self._devices) == 1:
            return self._collective.all_reduce([tensor], [label])[0]
        total = super().sum_in_replica(tensor, label)
        return self._rows_of_first(lambda: self._collective.all_reduce([total], [label])[0], total, label)

    def _rows_of_first(self, between: Callable[[], tf.Tensor], local: tf.Tensor, label: str) -> tf.Tensor:
        """Return, on every replica of this process, the rows that its first replica has received from all processes."""
        if self._collective.size == 1:
            return local
        replica = tf.distribute.get_replica_context()._replica_id
        rows = between() if replica == 0 else local[:0]
        return self.services.collectives[replica].all_gather(rows, key=f"{label} of all")

    def all_to_all_in_replica(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows for this replica; several replicas of a process take them from the rows of all."""
        if self.services.is_apart:
            return super().all_to_all_in_replica(tensor, label)
        if not tf.executing_eagerly() and len(self._devices) == 1:
            return self._collective.all_to_all(tensor, label)
        return self.all_gather_in_replica(tensor, label)[replica_index() :: self._num_replicas_in_sync]

    def _sums_of_several(self, flat: list[Any], between: Callable[[list[Any]], list[Any]], options: Any) -> list[Any]:
        values_and_ways = [
            (v, _as_it_is) if isinstance(v, tf.IndexedSlices) else self._collective.in_common_dtype(v) for v in flat
        ]
        totals = self._local_sums([value for value, _ in values_and_ways], options)
        if self._collective.size > 1:
            local = totals
            totals = self._from_first_replica(
                lambda: between(local), lambda: [_nothing(value) for value in local], options
            )
        return [restore(total) for total, (_, restore) in zip(totals, values_and_ways, strict=True)]

    def _from_first_replica(
        self, made: Callable[[], list[Any]], nothing: Callable[[], list[Any]], options: Any
    ) -> list[Any]:
        """Return the first replica's values on every replica of this process, as a sum to which others add nothing."""
        is_first = tf.distribute.get_replica_context()._replica_id == 0
        return self._local_sums(made() if is_first else nothing(), options)

    def _local_sums(self, flat: list[Any], options: Any) -> list[Any]:
        # A collective carries one dtype.
        sums: list[Any] = [None] * len(flat)
        reduce = super()._replica_ctx_all_reduce
        for dtype in dict.fromkeys(value.dtype for value in flat):
            mine = [index for index, value in enumerate(flat) if value.dtype == dtype]
            mine.reverse()  # TensorFlow fills its packs from the last value to the first
            sent = owned([as_rows(flat[index]) for index in mine])
            packs = packed(options, self.services.bucket_bytes)
            reduced = self._rows_apart(sent, functools.partial(reduce, _SUM, options=packs))
            for index, total in zip(mine, reduced, strict=True):
                sums[index] = of_rows(total, flat[index])
        return sums

    # Reductions between replicas, outside of them.

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        pairs = list(value_destination_pairs)
        moving = [i for i, (v, _) in enumerate(pairs) if not (reduce_op == _MEAN and isinstance(v, values.Mirrored))]
        local = [self._sum_of_local(pairs[index][0]) for index in moving]
        with self._waiting("a reduction between replicas"):
            totals = self._collective.all_reduce([value for value, _ in local])
        results = [value for value, _ in pairs]
        for index, total, (_, restore) in zip(moving, totals, local, strict=True):
            mean = mean_of(restore(total), self._num_replicas_in_sync) if reduce_op == _MEAN else restore(total)
            results[index] = _handed_to(mean, pairs[index][1])
        return results

    def _sum_of_local(self, value: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Return the sum of this process's replicas in a dtype that can be sent, and a function that casts it back."""
        mine = one_of_each(self)
        parts = [value.values[index] if isinstance(value, values.DistributedValues) else value for index in mine]
        if isinstance(parts[0], tf.IndexedSlices):
            return cross_device_utils.aggregate_tensors_or_indexed_slices(parts), _as_it_is
        carried = [self._collective.in_common_dtype(tf.convert_to_tensor(part)) for part in parts]
        return tf.add_n([part for part, _ in carried]), carried[0][1]

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        several = isinstance(value, values.DistributedValues)
        local = [value.values[index] for index in one_of_each(self)] if several else [value]
        rows = tf.concat(list(local), axis=axis) if len(local) > 1 else tf.convert_to_tensor(local[0])
        with self._waiting("a gathering of rows"):
            if isinstance(axis, int) and axis in (0, -rows.shape.rank):
                return _handed_to(self._collective.all_gather(rows), destinations)
            order = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, rows.shape.rank)], axis=0)
            gathered = self._collective.all_gather(tf.transpose(rows, order))
        return _handed_to(tf.transpose(gathered, tf.math.invert_permutation(order)), destinations)

    # Input of custom loops, sharded as in TensorFlow's multi-worker strategy.

    def _input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            num_input_pipelines=self._collective.size,
            input_pipeline_id=self._collective.rank,
            num_replicas_in_sync=self._num_replicas_in_sync,
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return input_util.get_distributed_dataset(
            dataset,
            self._input_workers_with_options(options),
            self._container_strategy(),
            num_replicas_in_sync=self._num_replicas_in_sync,
            input_context=self._input_context(),
            options=options,
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return input_util.get_distributed_datasets_from_function(
            dataset_fn,
            self._input_workers_with_options(options),
            [self._input_context()],
            self._container_strategy(),
            options=options,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        numbers = [int(self._get_replica_id_in_sync_group(replica)) for replica in range(len(self._devices))]
        contexts = [tf.distribute.experimental.ValueContext(one, self._num_replicas_in_sync) for one in numbers]
        return distribute_utils.regroup([value_fn(context) for context in contexts], always_wrap=True)


def _as_it_is(value: Any) -> Any:
    return value


def _nothing(value: Any) -> Any:
    """Return a contribution to a sum that changes nothing."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(value.values[:0], value.indices[:0], value.dense_shape)
    return tf.zeros_like(value)


def _handed_to(value: Any, destinations: Any) -> Any:
    """Return the value on every device of the destinations."""
    return cross_device_ops.simple_broadcast(value, destinations)
