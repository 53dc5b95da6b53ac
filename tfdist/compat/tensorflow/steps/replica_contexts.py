"""The replica context of a step, and the arguments of TensorFlow's reductions in a replica.

TensorFlow makes a context per replica and trace. So the changes here are attributes of that object while the step runs.

Private names, read in TensorFlow 2.21.0: `_get_default_strategy`, `_get_default_replica_context`, shared by all threads
and so left unchanged; `ReplicaContext._local_replica_id`, whose copy of a variable is read;
`Graph._variable_creator_stack`, by which a scope makes variables, of this thread; `collective_util.Options`, the class
behind `tf.distribute.experimental.CommunicationOptions`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_util, distribute_lib


def of_no_strategy(index: int = 0) -> Any:
    """Return a context in which code is traced for one device, even in the scope of a strategy."""
    context = tf.distribute.ReplicaContext(distribute_lib._get_default_strategy(), index)
    context._local_replica_id = 0
    return context


@contextlib.contextmanager
def outside_scope() -> Iterator[None]:
    """Make new variables of this process alone, also in the scope of a strategy, whose workers make them together."""
    graph = tf.compat.v1.get_default_graph()
    creators, graph._variable_creator_stack = graph._variable_creator_stack, []
    try:
        with of_no_strategy():
            yield
    finally:
        graph._variable_creator_stack = creators


@contextlib.contextmanager
def exchanging_by(*, all_gather: Callable[..., Any], all_reduce: Callable[..., Any]) -> Iterator[None]:
    """Let this thread's replica context use these functions within the block; outside of replicas nothing changes."""
    context = tf.distribute.get_replica_context()
    if context is None or context is distribute_lib._get_default_replica_context():
        yield
        return
    context.all_gather, context.all_reduce = all_gather, all_reduce
    try:
        yield
    finally:
        del context.all_gather, context.all_reduce


def own_all_gather(context: Any, tensor: tf.Tensor) -> tf.Tensor:
    """Return the rows of all replicas by TensorFlow's own `all_gather`."""
    return type(context).all_gather(context, tensor, axis=0)


def own_all_reduce(context: Any) -> Callable[..., Any]:
    return functools.partial(type(context).all_reduce, context)


class ValueOptions(collective_util.Options):
    """Communication options with labels for the values of one `all_reduce`; TensorFlow passes them on unchanged."""

    def __init__(self, labels: Sequence[str], *, keep_duplicate_indices: bool = True) -> None:
        super().__init__()
        self.labels = list(labels)
        self.keep_duplicate_indices = keep_duplicate_indices


def owned(value: Any) -> Any:
    """Give each tensor an op of its own, because a collective on a captured input of a function has no device."""
    return tf.nest.map_structure(_owned, value, expand_composites=False)


def _owned(value: Any) -> Any:
    if not isinstance(value, tf.IndexedSlices):
        return tf.identity(value)
    if value.dense_shape is None or tf.is_tensor(value.dense_shape):
        return value
    # A shape of Python numbers has no dtype, which TensorFlow's collectives of rows read.
    return tf.IndexedSlices(value.values, value.indices, tf.convert_to_tensor(value.dense_shape))


def told(options: Any) -> dict[str, Any]:
    """Return the arguments for `reduced_by` in communication options."""
    known = isinstance(options, ValueOptions)
    return {
        "labels": options.labels if known else None,
        "keep_duplicate_indices": options.keep_duplicate_indices if known else True,
    }


def packed(options: Any, bucket_bytes: int) -> Any:
    """Return communication options, with a size of packs added if they have none."""
    if options is not None and options.bytes_per_pack:
        return options
    return (options or tf.distribute.experimental.CommunicationOptions()).merge(
        tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bucket_bytes)
    )
