"""Which function is being traced, and what it has reduced so far."""

import weakref
from typing import Any

import tensorflow as tf

from tfdist.collectives.signature import Signature

_of_graph: "weakref.WeakKeyDictionary[Any, Signature]" = weakref.WeakKeyDictionary()


def current_signature() -> Signature | None:
    """Return the signature of the function that is being traced, its conditions and loops included; None eagerly."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return _of_graph.setdefault(graph, Signature())
