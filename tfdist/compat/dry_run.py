"""Checks that a step can be run for its results alone, outside of every strategy, because it changes nothing.

Private names, read in TensorFlow 2.21.0: `op_def_registry`, which knows the operations that have a state.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

# Operations that have a state, but leave nothing behind that is read later.
_HARMLESS = {"Assert", "Case", "HashTableV2", "If", "PartitionedCall", "Placeholder", "PrintV2", "ReadVariableOp"}
_HARMLESS |= {"LookupTableFindV2", "LookupTableSizeV2"}
_HARMLESS |= {"ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "VarHandleOp", "VariableShape", "While"}
_COLLECTIVES = ("Collective", "Horovod", "Tfdist")
_OF_CHANCE = ("Random", "Multinomial", "TruncatedNormal", "CudnnRNN")


def operations(function: Any) -> set[str]:
    """Return the types of all operations of a concrete function and of the functions that it calls."""
    return {node.op for node in nodes(function.graph)}


def seeded_draws(graph: Any) -> set[str]:
    """Return the types of a graph's operations that draw random numbers from a seed and a state of their kernels."""
    return {
        node.op
        for node in nodes(graph)
        if draws({node.op})
        and not node.op.startswith("Stateless")
        and any(key in node.attr and node.attr[key].i for key in ("seed", "seed2"))
    }


def nodes(graph: Any) -> list[Any]:
    found = graph.as_graph_def()
    return [*found.node, *(node for inner in found.library.function for node in inner.node_def)]


def draws(types: set[str]) -> bool:
    """Return whether operations of these types draw random numbers."""
    return any(mark in name for name in types for mark in _OF_CHANCE)


def changes(types: set[str], *, meets_others: bool) -> str | None:
    """Return the type of an operation that changes something beyond the function, or None."""
    for name in sorted(types - _HARMLESS):
        if meets_others and name.startswith(_COLLECTIVES):
            continue
        known = op_def_registry.get(name)
        if known is not None and known.is_stateful and not draws({name}):
            return name
    return None


def relaxed(value: Any) -> tf.TypeSpec:
    """Return the spec of a value, with an unknown number of rows if it is a tensor with rows."""
    spec = tf.type_spec_from_value(value)
    if not getattr(spec, "shape", tf.TensorShape([])).rank:
        return spec
    shape = tf.TensorShape([None, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)
