"""Methods of Keras layers with statistics, random numbers or a table, which can be replaced on one object.

Private names, read in Keras 3.15.1: `BatchNormalization._moments` and `_reduction_axes`; `SeedGenerator.next`, public
but not meant to be replaced; `Embedding._embeddings`, `Dense._kernel` and `EinsumDense._kernel`, since the public ones
may unpack quantized values; `_compute_attention`, `_query_dense`, `_key_dense`, `_value_dense`, `_gate_dense`,
`_output_dense`, `_dropout_layer` and `_dot_product_equation` of both attention layers (`keras/src/layers/attention/`);
`Layer._seed_generators` and `Layer._metrics`; `TextVectorization._output_mode`, `_output_sequence_length` and
`_ragged`, since its public configuration lists the vocabulary.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.keras.loss import may_be_rows

# attributes with functions of weights alone, and of results that are losses
_OF_WEIGHTS = ("initializer", "regularizer", "constraint")
_ASSIGNMENTS = frozenset({"assign", "assign_add", "assign_sub", "set_weights"})
# objects that a layer has or calls; each is looked at by itself, or only counts
_PARTS = (keras.Layer, keras.Metric, keras.Variable)
# layers of Keras that run programs of other libraries
_CARRIERS = tuple(
    getattr(keras.layers, name)
    for name in ("TFSMLayer", "JaxLayer", "FlaxLayer", "TorchModuleWrapper")
    if hasattr(keras.layers, name)
)


def override_moments(layer: keras.layers.BatchNormalization, moments: Callable[..., Any]) -> None:
    """Let one layer take its mean and variance from ``moments(inputs, mask)``, once."""
    vars(layer).setdefault("_moments", moments)


def own_moments(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> Any:
    return type(layer)._moments(layer, inputs, mask)


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    return list(layer._reduction_axes)


def override_next(generator: keras.random.SeedGenerator, draw: Callable[..., Any]) -> None:
    """Let one seed generator draw from ``draw(ordered=True)``, once."""
    vars(generator).setdefault("next", draw)


def own_next(generator: keras.random.SeedGenerator, ordered: bool) -> Any:
    return type(generator).next(generator, ordered=ordered)


def creating_variable() -> bool:
    """Return whether a layer is making the variable that is being created."""
    return isinstance(keras_variables.creator(), keras.Layer)


def may_add_losses(layer: keras.layers.Layer) -> bool:
    """Return whether a layer may add a loss that, unlike those of Keras' regularizers, is not a mean over examples."""
    regularizer = getattr(layer, "activity_regularizer", None)
    own = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
    if regularizer is not None and type(regularizer) not in own:
        return True
    return calls_add_loss(layer)


def calls_add_loss(layer: keras.layers.Layer) -> bool:
    """Return whether the class of a layer names `add_loss`; Keras calls it for every activity regularizer."""
    return "add_loss" in _names_in(layer.__class__)


def may_assign(layer: keras.layers.Layer) -> bool:
    """Return whether the class of a layer or model, if it is none of Keras', assigns variables."""
    return not _ASSIGNMENTS.isdisjoint(_names_in(layer.__class__))


def has_metrics(layer: keras.layers.Layer) -> bool:
    """Return whether a layer of the user's has metrics, which count what it gives them."""
    return not _is_keras(type(layer)) and not isinstance(layer, keras.Model) and bool(layer._metrics)


def comparing_rows(layers: Iterable[keras.layers.Layer]) -> list[str]:
    """Return the names of layers and operations that may compute with other rows than an output's own.

    Keras' layers keep rows apart, except for batch normalization, which does not count: its statistics are known to be
    of a replica or of all.
    """
    return [name for layer in layers for name in _comparing_rows(layer)]


def _comparing_rows(layer: keras.layers.Layer) -> list[str]:
    operations = getattr(layer, "operations", None) or ()  # those of a functional model are not all layers
    found = [one.name for one in operations if not isinstance(one, keras.layers.Layer)]
    if _is_over_rows(layer) or _runs_other_code(layer):
        found.append(layer.name)
    return found


def _is_over_rows(layer: keras.layers.Layer) -> bool:
    """Return whether a layer of Keras may compute over the first axis, as it is configured."""
    if isinstance(layer, keras.layers.MelSpectrogram):  # its floor is below the largest value of a batch
        return bool(layer.power_to_db)
    if isinstance(layer, keras.layers.TextVectorization):  # it pads texts to the longest one
        return layer._output_mode == "int" and not layer._ragged and layer._output_sequence_length is None
    axis = getattr(layer, "axis", None)
    return any(map(may_be_rows, axis if isinstance(axis, (list, tuple)) else (axis,)))


def _runs_other_code(layer: keras.layers.Layer) -> bool:
    """Return whether a layer computes by code that is not that of Keras' layers: its own, or that of what it is given.

    A model of the user's that leaves `call` to Keras has layers, which are looked at themselves.
    """
    if isinstance(layer, (keras.layers.Lambda, *_CARRIERS)):
        return True
    kind: Any = type(layer)
    if not all(map(_is_keras, (kind.call, kind.__call__))):
        return True
    if isinstance(layer, keras.Model):  # it holds metrics and an optimizer
        return False
    given = [value for name, value in vars(layer).items() if not name.endswith(_OF_WEIGHTS)]
    return any(callable(one) and not isinstance(one, _PARTS) and not _is_known(one) for one in given)


def _is_known(function: Any) -> bool:
    """Return whether a function that a layer holds is Keras' or TensorFlow's, or a method of it that tfdist gave it."""
    while isinstance(function, functools.partial):
        if may_be_rows(function.keywords.get("axis")):
            return False
        function = function.func
    return _is_keras(function) or str(getattr(function, "__module__", "")).startswith("tfdist.")


@functools.cache
def _names_in(kind: Any) -> frozenset[str]:
    """Return the names that methods of a class use, those of its bases and of functions that they name included."""
    found: set[str] = set()
    known: set[Any] = set()
    pending = [value for base in kind.__mro__ if not _is_keras(base) for value in vars(base).values()]
    while pending:
        function = inspect.unwrap(pending.pop())
        code = getattr(function, "__code__", None)
        if code is None or code in known or _is_keras(function):
            continue
        known.add(code)
        names = _names_of(code)
        found.update(names)
        given = getattr(function, "__globals__", {})
        pending.extend(given[name] for name in names if inspect.isfunction(given.get(name)))
    return frozenset(found)


def _names_of(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names_of, inner))


def _is_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(("keras.src.", "tensorflow."))


def override_add_loss(layer: keras.layers.Layer, adapted: Callable[[keras.layers.Layer, Any], Any]) -> None:
    """Let one layer add ``adapted(layer, loss)`` in the place of each loss, once."""

    def add_loss(loss: Any) -> None:
        type(layer).add_loss(layer, [adapted(layer, one) for one in keras.tree.flatten(loss)])

    vars(layer).setdefault("add_loss", add_loss)


@contextlib.contextmanager
def without_chance(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Let Keras' layers drop nothing and add no noise inside, and batch normalization take fixed statistics."""
    layers = list(layers)
    normalising = [vars(layer) for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    before = [(own, "_moments", own.get("_moments")) for own in normalising]
    for layer in layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            vars(layer)["_moments"] = functools.partial(_fixed_moments, layer)
    try:
        with without_noise(layers):
            yield
    finally:
        for own, name, value in before:
            own[name] = value
            if value is None:
                del own[name]


@contextlib.contextmanager
def without_noise(layers: Iterable[keras.layers.Layer]) -> Iterator[list[keras.layers.Layer]]:
    """Let Keras' layers drop nothing and add no noise inside; yields those that would have."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    quiet: dict[int, keras.layers.Layer] = {}
    for layer in layers:
        if not type(layer).__module__.startswith("keras.src.") or isinstance(layer, keras.layers.BatchNormalization):
            continue
        own = vars(layer)
        for name in ("rate", "stddev", "dropout", "recurrent_dropout"):
            if isinstance(own.get(name), (int, float)):
                if own[name]:
                    quiet[id(layer)] = layer
                before.append((own, name, own[name]))
                own[name] = 0.0
    try:
        yield list(quiet.values())
    finally:
        for own, name, value in before:
            own[name] = value


def draws(layer: keras.layers.Layer) -> bool:
    """Return whether a layer draws random numbers where it trains: a generator of its own, and something to draw."""
    if not layer._seed_generators:
        return False
    amounts = [vars(layer).get(name) for name in ("rate", "stddev", "dropout", "recurrent_dropout")]
    known = [amount for amount in amounts if isinstance(amount, (int, float))]
    return not known or any(known) or not type(layer).__module__.startswith("keras.src.")


def _fixed_moments(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    del mask
    channels = [inputs.shape[layer.axis]]
    return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)


def embeddings_of(layer: keras.layers.Embedding) -> Any:
    """Return the TensorFlow variable of an embedding's table, or None where a lookup is more than reading it."""
    variable = table_of(layer)
    if variable is None:
        return None
    value: Any = keras_variables.value_of(variable)
    return value if hasattr(value, "sparse_read") and len(value.shape) == 2 else None


def table_of(layer: keras.layers.Embedding) -> Any:
    """Return the Keras variable of an embedding's table, or None where a lookup is more than reading it."""
    is_more = layer.lora_enabled or getattr(layer, "quantization_mode", None)
    return None if is_more else vars(layer).get("_embeddings")


def kernel_of(layer: Any) -> Any:
    """Return the Keras variable of a dense layer's kernel, or None where the layer computes with more than it."""
    is_more = layer.lora_enabled or getattr(layer, "quantization_mode", None)
    return None if is_more else vars(layer).get("_kernel")


def override_call(layer: keras.layers.Layer, kind: Any, call: Any) -> None:
    """Give one layer its own way to compute, once; a class with another way keeps it."""
    if isinstance(layer, kind) and type(layer).call is kind.call:
        vars(layer).setdefault("call", call)


def own_call(kind: Any, layer: keras.layers.Layer, *inputs: Any, **options: Any) -> Any:
    return kind.call(layer, *inputs, **options)


#: the kinds of attention that have the parts below
ATTENTIONS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def projections_of(layer: Any) -> list[keras.layers.EinsumDense]:
    gate = vars(layer).get("_gate_dense")
    return [layer._query_dense, layer._key_dense, layer._value_dense, *([] if gate is None else [gate])]


def projection_back_of(layer: Any) -> keras.layers.EinsumDense:
    """Return the layer of an attention that makes its result of all heads."""
    return layer._output_dense


def attends_as_keras(layer: Any) -> bool:
    """Return whether the heads of an attention are computed as in its class, each by itself."""
    return any(type(layer)._compute_attention is kind._compute_attention for kind in ATTENTIONS)


def dropout_of_scores(layer: Any) -> tuple[keras.layers.Dropout, int]:
    """Return an attention's dropout layer, and which dim of what it is given are the heads, counted from the last."""
    given, scores = layer._dot_product_equation.split("->")
    heads = given.split(",")[0][-2]
    return layer._dropout_layer, scores.index(heads) - len(scores)
