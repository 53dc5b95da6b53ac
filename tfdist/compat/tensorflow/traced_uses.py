"""Questions about the function being traced: the variables that it uses, and the function that it is a branch of.

Private names, read in TensorFlow 2.21.0: `FuncGraph` and its subclasses for conditions and loops;
`get_read_write_resource_inputs`; `DistributedVariable._get_on_device_or_primary`; `experimental_acd_manager`, which
orders operations with effects.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

_CONTROL_FLOW = (CondBranchFuncGraph, WhileCondFuncGraph, WhileBodyFuncGraph)


def assigned(variables: list[Any]) -> list[Any]:
    """Return the Keras variables that the function being traced does not only read; in eager mode, all of them."""
    if tf.executing_eagerly():
        return variables
    return [variable for variable, count in zip(variables, _assignments_of(variables), strict=True) if count]


def assignments(variables: list[Any]) -> tuple[Any, int] | None:
    """Return the function being traced, and the number of assignments to these Keras variables; None in eager mode."""
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph(), sum(_assignments_of(variables))


def handle_of(variable: tf.Variable) -> tf.Tensor | None:
    """Return the handle, in the function being traced, of a variable's copy on this replica; None before its use."""
    return _captured(tf.compat.v1.get_default_graph()).get(id(_here(variable).handle))


def uses(variables: list[Any]) -> int:
    """Return the number of uses of this replica's copies of Keras variables so far in the function being traced."""
    return sum(len(ops) for _, ops in _uses_of(variables))


def _assignments_of(variables: list[Any]) -> list[int]:
    """Return the number of uses other than reads, in the traced function, of each variable's copy on this replica."""
    return [sum(not _is_read(op, handle) for op in ops) for handle, ops in _uses_of(variables)]


def _uses_of(variables: list[Any]) -> list[tuple[Any, list[tf.Operation]]]:
    """Return the handle of each variable's copy on this replica, and its consumers, in the graph being traced."""
    graph = tf.compat.v1.get_default_graph()
    captured = _captured(graph)
    handles = [captured.get(id(_here(variable.value).handle)) for variable in variables]
    return [(handle, [] if handle is None else handle.consumers()) for handle in handles]


def _here(variable: Any) -> Any:
    """Return this replica's copy of a variable, or the variable itself if it has no copies."""
    return variable._get_on_device_or_primary() if hasattr(variable, "_get_on_device_or_primary") else variable


def _is_read(op: tf.Operation, handle: tf.Tensor) -> bool:
    """Return whether an operation only reads a variable, also inside of functions that it calls."""
    return handle in get_read_write_resource_inputs(op)[0]


def independent(results: Any) -> Any:
    """Let an operation with effects wait only for its inputs, not for earlier effects; return its result."""
    if tf.executing_eagerly():
        return results
    first = results[0] if isinstance(results, (list, tuple)) else results
    operation = first if isinstance(first, tf.Operation) else first.op
    if operation.graph.experimental_acd_manager is not None:  # a graph of TensorFlow 1 has no such manager
        operation.graph.experimental_acd_manager.run_independently(operation)
    return results


def first_reads() -> list[tf.Tensor]:
    """Return the reads of floating-point variables in the function being traced that wait for no other operation."""
    graph = tf.compat.v1.get_default_graph()
    taken = [op for internal in _captured(graph).values() for op in internal.consumers()]
    found = [op.outputs[0] for op in taken if op.type == "ReadVariableOp" and not op.control_inputs]
    return [read for read in found if read.shape.rank is not None and read.dtype.is_floating and read.consumers()]


def in_condition() -> bool:
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        if isinstance(graph, _CONTROL_FLOW):
            return True
        graph = graph.outer_graph
    return False


def within_control_flow(end: Any) -> list[Any]:
    """Return the branches and loops being traced, innermost first, up to a function or to the graph `end`."""
    graph, found = tf.compat.v1.get_default_graph(), []
    while isinstance(graph, _CONTROL_FLOW) and graph is not end:
        found.append(graph)
        graph = graph.outer_graph
    return found


def is_loop(graph: Any) -> bool:
    return isinstance(graph, WhileBodyFuncGraph)


def is_written(graph: Any, variable: Any) -> bool:
    """Return whether a graph so far does more with a variable's copy on this replica than read it."""
    handle = _captured(graph).get(id(variable._get_on_device_or_primary().handle))
    return handle is not None and not all(_is_read(op, handle) for op in handle.consumers())


def _captured(graph: Any) -> dict[int, tf.Tensor]:
    return {id(external): internal for external, internal in graph.captures}
