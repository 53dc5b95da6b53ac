"""The floating-point operations of a model per example, counted in the graph of its forward pass.

Products of matrices and convolutions count, two for each multiplication and addition, as is usual for the utilization
of a model's FLOPs; elementwise operations do not. A training step counts three forward passes: the backward pass needs
two products for each of the forward pass. An operation that is repeated to save memory counts once.

Source: A. Chowdhery, S. Narang, J. Devlin et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
"""

from math import prod
from typing import Any

import keras
import tensorflow as tf

#: forward passes to which a step of training amounts
PASSES_OF_A_STEP = 3
# operations that run functions, which may loop, or be large
_CALLS = {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "Case"}
_CALLS |= {"XlaLaunch"}
_CONVOLUTIONS = ("Conv2D", "Conv3D")


def of_example(model: Any) -> float | None:
    """Return the floating-point operations of a model's forward pass for one example.

    Example:
        >>> of_example(keras.Sequential([keras.Input((10, 16)), keras.layers.Dense(32)])) == 2 * 10 * 16 * 32
        True
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or any(None in one.shape[1:] for one in inputs):
        return None
    specs = [tf.TensorSpec([1, *one.shape[1:]], one.dtype) for one in inputs]

    def forward(*given: tf.Tensor) -> Any:
        is_sequence = isinstance(model, keras.Sequential)
        return model(given[0] if is_sequence else tf.nest.pack_sequence_as(model.input, list(given)), training=False)

    try:
        with tf.init_scope():
            graph = tf.function(forward, autograph=False).get_concrete_function(*specs).graph
    except Exception:  # noqa: BLE001 - the user's layers run here
        return None
    counts = [_of_operation(one) for one in graph.get_operations()]
    return None if None in counts else float(sum(filter(None, counts)))


def _of_operation(op: tf.Operation) -> int | None:
    if op.type in _CALLS:
        return None
    if op.type == "MatMul":
        return _product(op, "transpose_a", -2)
    if op.type.startswith("BatchMatMul"):
        return _product(op, "adj_x", -2)
    if op.type == "Einsum":
        return _einsum(op)
    if op.type in _CONVOLUTIONS:
        return _times(op.outputs[0].shape, op.inputs[1].shape[:-1])
    if op.type == "DepthwiseConv2dNative":
        return _times(op.outputs[0].shape, op.inputs[1].shape[:2])
    return 0


def _product(op: tf.Operation, transposed: str, other: int) -> int | None:
    inner = op.inputs[0].shape[other if op.get_attr(transposed) else -1 : None][:1]
    return _times(op.outputs[0].shape, inner)


def _einsum(op: tf.Operation) -> int | None:
    given = op.get_attr("equation").decode().replace(" ", "").partition("->")[0].split(",")
    if len(given) < 2:
        return 0  # a transpose or a sum
    sizes: dict[str, Any] = {}
    for labels, tensor in zip(given, op.inputs, strict=True):
        if "..." in labels or tensor.shape.rank != len(labels):
            return None
        sizes |= dict(zip(labels, tensor.shape, strict=True))
    return _times(sizes.values())


def _times(*shapes: Any) -> int | None:
    dims = [size for shape in shapes for size in shape]
    return None if None in dims else 2 * prod(dims)
