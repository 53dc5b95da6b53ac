"""Loss, metrics and optimizer of a model, built from the outputs that its graph of layers already describes.

Keras traces the whole model to learn the shapes and dtypes of its outputs, for a third of the time before the first
trace. A Sequential or functional model of Keras layers already has them.

Private names, read in Keras 3.15.1 (`keras/src/trainers/trainer.py`): `_symbolic_build`, of which this module repeats
the rest; `_compile_loss`, `_compile_metrics`, `_compute_loss`, `_post_build`, which it uses; `_flatten_layers`.
"""

from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import compute_output_spec
from keras.src.models.functional import Functional
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.symbolic import graphs


def build(model: keras.Model, spec: Any) -> bool:
    """Build the unbuilt parts of a model for batches of this spec; return False, and do nothing, if Keras must."""
    graph = _graph(model) if type(model)._symbolic_build is Trainer._symbolic_build else None
    if graph is None or (isinstance(spec, tuple) and len(spec) > 3):  # a batch for a user's step
        return False
    batch = keras.utils.unpack_x_y_sample_weight(spec)
    if not _fits(graph, batch[0]):
        return False
    outputs = [keras.KerasTensor(one.shape, one.dtype) for one in graph.outputs]
    y_pred = graphs.packed(graph, outputs)
    x, y, sample_weight = keras.tree.map_structure(_symbolic, batch, none_is_leaf=True)
    weights = {"sample_weight": sample_weight}
    if model._compile_metrics is not None and not model._compile_metrics.built:
        compute_output_spec(model.compute_metrics, x, y, y_pred, **weights)
    if model._compile_loss is not None and not model._compile_loss.built:
        compute_output_spec(model._compute_loss, x, y, y_pred, **weights, training=False)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._post_build()
    return True


def _graph(model: keras.Model) -> Functional | None:
    """Return the graph of a built model; None if it contains code that is not from Keras."""
    kind, graph = type(model), graphs.graph_of(model)
    is_called = kind.call in (Functional.call, keras.Sequential.call) and kind.__call__ is keras.layers.Layer.__call__
    layers = list(model._flatten_layers())
    if graph is None or not is_called or not all(one.built for one in layers):
        return None
    return graph if all(type(one).__module__.startswith("keras.") for one in layers if one is not model) else None


def _fits(graph: Functional, given: Any) -> bool:
    """Return True for dense inputs whose shapes, except for the number of rows, are those of the graph."""
    leaves, inputs = keras.tree.flatten(given), graph.inputs
    if len(leaves) != len(inputs) or not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves):
        return False
    pairs = zip(leaves, inputs, strict=True)
    return all(tuple(leaf.shape[1:]) == tuple(one.shape[1:]) and not one.sparse for leaf, one in pairs)


def _symbolic(leaf: Any) -> Any:
    return None if leaf is None else keras.KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype))
