"""Ways in which a step gives a state a new value, and what their graphs say."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.training.checks import state_dependence

_WAYS: dict[str, Callable[[tf.Tensor, tf.Tensor], Any]] = {
    "counted": lambda state, x: state + tf.cast(tf.shape(x)[0], tf.float32),
    "subtracted": lambda state, x: state - tf.reduce_sum(x),
    "new": lambda state, x: tf.reduce_sum(x, axis=0),
    "decayed": lambda state, x: 0.9 * state + 0.1 * tf.reduce_sum(x, axis=0),
    "moved": lambda state, x: state + 0.25 * (tf.reduce_mean(x, axis=0) - state),
    "decayed by the batch": lambda state, x: tf.reduce_max(x) * state + tf.reduce_sum(x, axis=0),
    "largest": lambda state, x: tf.maximum(state, tf.reduce_max(x, axis=0)),
    "smallest, chosen": lambda state, x: tf.where(x[0] < state, x[0], state),
    "begun anew": lambda state, x: tf.math.floormod(state + 1.0, 7.0),
    "squared": lambda state, x: state * state + tf.reduce_sum(x),
    "in a row": lambda state, x: tf.concat([x[0, :1], state[:-1]], axis=0),
    "at places": lambda state, x: tf.tensor_scatter_nd_update(state, [[1]], x[0, :1]),
    "added at places": lambda state, x: tf.tensor_scatter_nd_add(state, [[1]], x[0, :1]),
    "kept": lambda state, x: state,
}


def found() -> dict[str, list[Any]]:
    """Return what is found of each way, and the smallest and the largest factor of the former value."""
    seen: dict[str, list[Any]] = {}
    for name, way in _WAYS.items():
        graph = tf.Graph()
        with graph.as_default():
            state = tf.identity(tf.compat.v1.placeholder(tf.float32, [3]))
            result = state_dependence.of(way(state, tf.compat.v1.placeholder(tf.float32, [None, 3])), state)
            kept = None
            if result.kept is not None:
                with tf.compat.v1.Session(graph=graph) as session:
                    kept = sorted(set(session.run(result.kept).round(6).tolist()))
        seen[name] = [result.dependence, kept]
    return seen
