"""The replica context of a step: the result of `tf.distribute.get_replica_context()` in it.

TensorFlow makes a context per replica and trace, so what a step changes is an attribute of that object while it runs.

Private names, read in TensorFlow 2.21.0: `_get_default_strategy`, `_get_default_replica_context`, shared by all threads
and so left unchanged; `ReplicaContext._local_replica_id`, whose copy of a variable is read.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib


def of_no_strategy(index: int = 0) -> Any:
    """Return a context in which what is traced is for one device, also in the scope of a strategy."""
    context = tf.distribute.ReplicaContext(distribute_lib._get_default_strategy(), index)
    context._local_replica_id = 0
    return context


@contextlib.contextmanager
def exchanging_by(*, all_gather: Callable[..., Any], all_reduce: Callable[..., Any]) -> Iterator[None]:
    """Let this thread's replica context exchange by other functions inside; outside of replicas nothing changes."""
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
    """Return TensorFlow's own `all_reduce` of a replica context."""
    return functools.partial(type(context).all_reduce, context)
