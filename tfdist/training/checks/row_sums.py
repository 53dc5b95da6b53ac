"""Proof by the graph that a value is a mean or a sum, whatever the rows of a batch and the variables are.

A trial holds for its rows and weights. A mask that hides nothing yet, or a penalty that is still zero, looks like a
mean. The graph shows properties that hold for all values: each row is computed by itself, rows are added up, the rest
is linear, and all of it grows alike with the number of rows. `row_rules` has the rule of each operation.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.checks.row_rules import ANY, FORMER, FREE, RULES, SIZES, ZERO, Kind, Known, drawn, is_free
from tfdist.training.checks.row_shapes import refine
from tfdist.training.replica.judging import Verdict

_FEW = 64  # elements of a constant that are looked at


def shown(values: Sequence[Any], given: Iterable[Any], former: Any = None) -> list[Verdict]:
    """Classify each value by its graph: "mean", "sum", "equal" (independent of the rows) or "unknown".

    Example:
        >>> @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        ... def tried(x):
        ...     values = [tf.reduce_mean(x), tf.reduce_sum(x), tf.reduce_sum(x) / tf.reduce_max(x)]
        ...     print(shown(values, [x]))
        >>> _ = tried.get_concrete_function()
        ['mean', 'sum', 'unknown']
    """
    flat = [_listed(value) for value in values]
    graph = next((one.graph for several in flat for one in several if hasattr(one, "graph")), None)
    if graph is None:
        return ["unknown"] * len(values)
    known = _known_of(graph, given, former)
    return [verdict_of([_of_value(one, known) for one in several]) for several in flat]


def verdict_of(found: Sequence[Known]) -> Verdict:
    """Return the verdict on a value, given the knowledge about its tensors.

    Example:
        >>> verdict_of([Known(Kind.TOTAL, 0)]), verdict_of([Known(Kind.TOTAL, 1), Known(Kind.FREE, 1)])
        ('mean', 'sum')
        >>> verdict_of([FREE]), verdict_of([Known(Kind.ROWS)])
        ('equal', 'unknown')
    """
    parts = [one for one in found if one.kind is not Kind.ZERO]
    kinds = {Kind.FREE if one.kind is Kind.FORMER else one.kind for one in parts}
    if not parts or not kinds <= {Kind.FREE, Kind.TOTAL} or len({one.power for one in parts}) > 1:
        return "unknown"
    power = parts[0].power
    if power == 0:
        return "mean" if Kind.TOTAL in kinds else "equal"
    return "sum" if power == 1 else "unknown"


def _listed(value: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(value, expand_composites=False) if one is not None]


def _of_value(value: Any, known: dict[Any, Known]) -> Known:
    if isinstance(value, tf.Tensor):
        return known.get(value.ref(), FREE)
    if not isinstance(value, tf.IndexedSlices):
        return ANY
    rows, indices = (known.get(one.ref(), FREE) for one in (value.values, value.indices))
    is_added_up = rows.kind in (Kind.ROWS, Kind.FREE) and indices == Known(Kind.ROWS)
    return Known(Kind.TOTAL, rows.power + 1) if is_added_up else ANY


def _known_of(graph: Any, given: Iterable[Any], former: Any) -> dict[Any, Known]:
    known: dict[Any, Known] = {}
    for one in given:
        if isinstance(one, tf.Tensor):
            known[one.ref()] = Known(Kind.ROWS) if one.shape.rank else FREE
        else:
            known.update((part.ref(), ANY) for part in tf.nest.flatten(one, expand_composites=True))
    if former is not None:
        known[former.ref()] = FORMER
    for op in graph.get_operations():  # in an order in which they can run
        inputs = [known.get(one.ref(), FREE) for one in op.inputs]
        try:
            refine(op)
            outputs = _outputs(op, inputs)
        except Exception:  # noqa: BLE001 - an operation in a form that no rule has met; the step is tried all the same
            outputs = [ANY] * len(op.outputs)
        for number, (output, found) in enumerate(zip(op.outputs, outputs, strict=True)):
            known.setdefault(output.ref(), inputs[number] if op.type == "IdentityN" else found)
    return known


def _outputs(op: Any, inputs: list[Known]) -> list[Known]:
    if op.type == "Const":
        return [_constant(op)]
    if op.type == "ReadVariableOp":
        return [inputs[0]]
    kinds = {one.kind for one in inputs}
    if "Random" in op.type or op.type == "Multinomial":
        return [ANY if kinds & {Kind.ANY, Kind.ROWS, Kind.TOTAL} else drawn(op)] * len(op.outputs)
    rule = RULES.get(op.type)
    if rule is not None and inputs:
        return [rule(op, inputs)] * len(op.outputs)
    if is_free(inputs, op.inputs):
        return [FREE] * len(op.outputs)
    of_sizes = kinds <= {Kind.FREE, Kind.ZERO, Kind.SHAPE, Kind.SIZES} and all(
        one.dtype.is_integer for one in op.inputs
    )
    return [SIZES if of_sizes else ANY] * len(op.outputs)


def _constant(op: Any) -> Known:
    is_small = (op.outputs[0].shape.num_elements() or 0) <= _FEW and op.outputs[0].dtype != tf.string
    return ZERO if is_small and not np.any(tf.get_static_value(op.outputs[0])) else FREE
