"""Keys of what a function reduces, which follow from all that it has reduced before.

So operations of workers that run different functions never meet. Eagerly all have one key: workers that reduce
different things at once are told by the engine instead of waiting.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.signature import Signature

#: the key of all that is reduced outside of functions
EAGER = "eager"

_of_graph: "weakref.WeakKeyDictionary[Any, dict[int, Signature]]" = weakref.WeakKeyDictionary()


def current_signature(replica: int = 0) -> Signature | None:
    """Return the signature of the function that is being traced, its conditions and loops included; None eagerly."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return _of_graph.setdefault(graph, {}).setdefault(replica, Signature())


def next_key(entries: Sequence[str], replica: int = 0) -> str:
    """Return the key of the operation that reduces these next, and note them in the function's signature."""
    traced = current_signature(replica)
    return EAGER if traced is None else [traced.add(entry) for entry in entries][-1]


def described(kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
    """Return what is done with a tensor, for a signature and for messages.

    Example:
        >>> described("sum", tf.zeros([3]), "gradient of dense/bias")
        'sum float32 (3,) gradient of dense/bias'
    """
    shape = tensor.shape if shape is None else shape
    return " ".join(filter(None, [kind, tensor.dtype.name, str(shape), label]))
