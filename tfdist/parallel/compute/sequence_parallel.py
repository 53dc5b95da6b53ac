"""Sequence parallelism for models with a known graph, if layouts ask for it.

    layer by rows, attention, table by rows     scattered: the part of the sum
    normalization, dropout, sums of two         of parts, with entering(weights), whose gradient is summed
    layer by columns, attention                 of collected(part), whose gradient is scattered
    any other layer                             of the whole, gathered(part); its result is cut

As many bytes travel as without, and each of m members needs 1 / m of the memory for activations in between. Masks of
dropout are parts of one device's mask.

Source: V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_variables, layer_methods
from tfdist.compat.keras.symbolic import graphs
from tfdist.parallel.compute import chains, keep_sharded, partial_layers
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.compute.partial_layers import CALLS, SEQUENCE, rows_of, way_of
from tfdist.parallel.layouts import WHOLE, OutputLayouts

_NORMALIZATIONS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
_NUMBERS = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Placing:
    """The layouts of activations, and a function of axis and label that returns the transfers of the traced replica."""

    layouts: OutputLayouts
    along: Callable[[str, str], Along | None]


@dataclass(frozen=True)
class _Lying:
    """An activation in the graph: whole, or this member's part along an axis."""

    tensor: Any
    along: Along | None = None


def call(model: Any, placing: Placing, *inputs: Any, **options: Any) -> Any:
    """Compute as a Sequential or functional model does, with activations in parts where this is known to be right."""
    graph = graphs.graph_of(model)
    flat = keras.tree.flatten(inputs)
    is_plain = all(isinstance(one, tf.Tensor) and graphs.mask_of(one) is None for one in flat) and len(inputs) == 1
    training = options.pop("training", None)
    is_plain = is_plain and all(one is None for one in options.values())
    with keep_sharded.keeping(chains.found(model)):
        if graph is None or not placing.layouts.may_cut or not is_plain:
            return layer_methods.own_call(type(model), model, *inputs, training=training, **options)
        given = [_Lying(one) for one in graphs.standardized(graph, inputs[0])]
        outputs = _Graph(graph, placing, training).run(given)
        return graphs.packed(graph, [_whole(one) for one in outputs])


def layers_of(models: Sequence[Any]) -> list[Any]:
    """Return the layers in the graphs of models, whose results may be in parts."""
    found = [graphs.graph_of(model) for model in models]
    every = [one.operation for graph in found if graph is not None for one in graphs.calls(graph)]
    return [one for one in every if isinstance(one, keras.layers.Layer)]


class _Graph:
    def __init__(self, graph: Any, placing: Placing, training: bool | None, name: str = "") -> None:
        self._graph, self._placing, self._training, self._name = graph, placing, training, name
        self._lying: dict[int, _Lying] = {}
        self._wholes: dict[int, tf.Tensor] = {}
        self._collected: dict[int, tf.Tensor] = {}

    def run(self, given: Sequence[_Lying]) -> list[_Lying]:
        self._lying = {id(tensor): one for tensor, one in zip(self._graph.inputs, given, strict=True)}
        results = {id(tensor) for tensor in self._graph.outputs}
        for number, one in enumerate(graphs.calls(self._graph)):
            made = self._computed(one, f"{self._name}{number} {type(one.operation).__name__}", results)
            self._lying |= {id(tensor): value for tensor, value in zip(one.makes, made, strict=True)}
        return [self._lying[id(tensor)] for tensor in self._graph.outputs]

    def _computed(self, one: graphs.Call, label: str, results: set[int]) -> list[_Lying]:
        layer = one.operation
        along = self._along(one, f"activations of {label}")
        nested = _nested(one)
        if nested is not None:
            with keep_sharded.keeping(chains.found(layer)):
                inside = _Graph(nested, self._placing, self._training, f"{label} ")
                (value,) = inside.run([self._lying[id(one.takes[0])]])
        elif keep_sharded.place_between(layer) is not None:
            made = one.run(*self._arguments(one, self._whole, None), training=self._training)
            return [_Lying(tensor) for tensor in made]
        elif along is not None and _is_by_itself(one):
            return [_Lying(self._by_itself(one, along), along)]
        else:
            scattering = along is not None and self._scatters(one, along)
            is_entered = self._is_entered(one, along)
            arguments = self._arguments(one, self._entered if is_entered else self._whole, along)
            entered = (layer,) if is_entered else ()
            with keep_sharded.keeping(
                keep_sharded.Kept(entered=entered, scattering=_summing(layer) if scattering else ())
            ):
                made = one.run(*arguments, training=self._training)
            if scattering:
                return [_Lying(made[0], along)]
            if len(made) != 1:
                return [_Lying(tensor) for tensor in made]
            value = _Lying(made[0])
        is_last = id(one.makes[0]) in results
        if (
            along is None
            or value.along is not None
            or is_last
            or keep_sharded.is_among(layer, "giving")
            or not _may_cut(value.tensor)
        ):
            return [value]
        return [_Lying(along.cut(value.tensor, SEQUENCE), along)]

    def _along(self, one: graphs.Call, label: str) -> Along | None:
        """Return the axis along which a call's result is to be cut, or None if it stays whole."""
        layer = one.operation
        asked = self._placing.layouts.of(layer.path or layer.name) if isinstance(layer, keras.layers.Layer) else None
        if asked is None:
            taken = [self._lying[id(tensor)].along for tensor in one.takes]
            asked = next((along.axis for along in taken if along is not None), WHOLE)
        if asked == WHOLE or len(one.makes) != 1 or getattr(layer, "activity_regularizer", None) is not None:
            return None
        length = _length(one.makes[0])
        along = None if length is None else self._placing.along(asked, label)
        return along if along is not None and length is not None and length % along.size == 0 else None

    def _is_entered(self, one: graphs.Call, along: Along | None) -> bool:
        """Return whether members compute different things from a layer's input that has not passed `entering` yet."""
        layer = one.operation
        if not isinstance(layer, layer_methods.ATTENTIONS):
            way = way_of(layer)
            taken = self._lying[id(one.takes[0])].along if way is not None and len(one.takes) == 1 else None
            return way is not None and way.by_columns and taken is not None and taken.axis == way.along.axis
        by_heads = _heads_of(one)
        taken_along = [self._lying[id(tensor)].along for tensor in one.takes]
        axes = {other.axis for other in (*taken_along, along) if other is not None}
        return by_heads is not None and axes == {by_heads.axis}

    def _scatters(self, one: graphs.Call, along: Along) -> bool:
        layer = one.operation
        if isinstance(layer, layer_methods.ATTENTIONS):
            by_heads = _heads_of(one)
            back = layer_methods.projection_back_of(layer)
            return by_heads is not None and by_heads.axis == along.axis and _finishes_parts(back, one.makes[0])
        rows = rows_of(layer)
        if rows is not None:
            return rows.axis == along.axis and not layer.mask_zero
        way = way_of(layer)
        is_by_rows = way is not None and not way.by_columns and way.along.axis == along.axis
        return is_by_rows and _finishes_parts(layer, one.makes[0])

    def _by_itself(self, one: graphs.Call, along: Along) -> Any:
        """Return this member's part of the result of a call in which each place depends on that place alone."""
        layer, length = one.operation, _length(one.makes[0])
        rank = len(one.makes[0].shape)
        arguments, named = self._arguments(one, self._part, along)
        own = {id(leaf) for leaf in keras.tree.flatten((arguments, named)) if isinstance(leaf, _Part)}

        def plain(leaf: Any) -> Any:
            if id(leaf) in own:
                return leaf.tensor
            dim = SEQUENCE - rank + np.ndim(leaf)
            is_cut = not isinstance(leaf, _NUMBERS) and dim >= 0 and np.shape(leaf)[dim] == length
            return along.cut(tf.convert_to_tensor(leaf), dim) if is_cut else leaf

        arguments, named = keras.tree.map_structure(plain, (arguments, named))
        between = ((layer, along, SEQUENCE - rank),) if type(layer) is keras.layers.Dropout else ()
        weights = list(getattr(layer, "trainable_weights", ()))
        values = [(one, along.entering(tf.convert_to_tensor(keras_variables.value_of(one)))) for one in weights]
        with keep_sharded.keeping(keep_sharded.Kept(between=between)), _given(values):
            return one.run(arguments, named, training=self._training)[0]

    def _arguments(
        self, one: graphs.Call, give: Callable[[Any, Along | None], Any], along: Along | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return one.arguments({id(tensor): give(tensor, along) for tensor in one.takes})

    def _whole(self, tensor: Any, along: Along | None) -> tf.Tensor:
        del along
        if id(tensor) not in self._wholes:
            self._wholes[id(tensor)] = _whole(self._lying[id(tensor)])
        return self._wholes[id(tensor)]

    def _entered(self, tensor: Any, along: Along | None) -> tf.Tensor:
        if id(tensor) not in self._collected:
            value = self._lying[id(tensor)]
            entering = value.along or along
            assert entering is not None
            do = entering.entering if value.along is None else functools.partial(entering.collected, dim=SEQUENCE)
            self._collected[id(tensor)] = do(value.tensor)
        return self._collected[id(tensor)]

    def _part(self, tensor: Any, along: Along | None) -> "_Part":
        value = self._lying[id(tensor)]
        assert along is not None
        if value.along is not None and value.along.axis == along.axis:
            return _Part(value.tensor)
        return _Part(along.cut(self._whole(tensor, None), SEQUENCE))


@dataclass(frozen=True, eq=False)
class _Part:
    """A mark on an argument that is a part."""

    tensor: Any


def _whole(value: _Lying) -> Any:
    return value.tensor if value.along is None else value.along.gathered(value.tensor, SEQUENCE)


def _given(values: Sequence[tuple[Any, Any]]) -> Any:
    """Give weights other values in a context; without any values it changes nothing, as seeds need."""
    if not values:
        return contextlib.nullcontext()
    return keras.StatelessScope(state_mapping=list(values), initialize_variables=False)


def _length(tensor: Any) -> int | None:
    """Return the length of a tensor's sequence, or None if it is not known."""
    shape = tensor.shape
    return shape[SEQUENCE] if len(shape) > SEQUENCE + 1 else None


def _may_cut(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and graphs.mask_of(tensor) is None


def _nested(one: graphs.Call) -> Any:
    """Return the graph of a nested model that `call` computes, with one input and output, or None."""
    own = vars(one.operation).get("call") if isinstance(one.operation, keras.Model) else None
    if not isinstance(own, functools.partial) or own.func is not call:
        return None
    arguments, named = one.arguments({id(tensor): tensor for tensor in one.takes})
    graph = graphs.graph_of(one.operation)
    is_simple = graph is not None and len(arguments) == 1 and arguments[0] is one.takes[0]
    if graph is None or not is_simple or any(value is not None for value in named.values()):
        return None
    is_same = len(graph.inputs) == len(graph.outputs) == 1 and len(graph.inputs[0].shape) == len(one.takes[0].shape)
    return graph if is_same and one.operation.activity_regularizer is None else None


def _heads_of(one: graphs.Call) -> Along | None:
    arguments, named = one.arguments({id(tensor): tensor for tensor in one.takes})
    found: Along | None = partial_layers.along_of(one.operation, *arguments, **named)
    return found


def _summing(layer: Any) -> tuple[Any, ...]:
    return (layer_methods.projection_back_of(layer),) if isinstance(layer, layer_methods.ATTENTIONS) else (layer,)


def _finishes_parts(layer: Any, result: Any) -> bool:
    """Return whether a layer's bias and activation are the same for each place of the sequence."""
    behind = len(result.shape) - SEQUENCE
    has_none = layer.bias is None or len(layer.bias.shape) < behind or layer.bias.shape[-behind] == 1
    return has_none and chains.is_elementwise(layer.activation) and layer.activity_regularizer is None


def _is_by_itself(one: graphs.Call) -> bool:
    """Return whether each place of a call's result depends on that place alone, without a mask."""
    layer, result = one.operation, one.makes[0]
    if any(len(tensor.shape) != len(result.shape) or _length(tensor) != _length(result) for tensor in one.takes):
        return False
    leaves = keras.tree.flatten(one.arguments({id(tensor): tensor for tensor in one.takes}))
    taken = {id(tensor) for tensor in one.takes}
    if not all(isinstance(leaf, (*_NUMBERS, np.ndarray, tf.Tensor)) for leaf in leaves if id(leaf) not in taken):
        return False
    if any(keras_variables.is_replaced(weight) for weight in getattr(layer, "weights", ())):
        return False
    if type(layer) in _NORMALIZATIONS:
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        return [axis % len(result.shape) for axis in axes] == [len(result.shape) - 1]
    return type(layer) in graphs.ARITHMETIC or chains.may_pass(layer)


_CALLS: dict[Any, Any] = {**CALLS, **dict.fromkeys(layer_methods.ATTENTIONS, partial_layers.attention_call)}


def adapt(layers: list[keras.layers.Layer], placing: Placing) -> None:
    """Make a model and its layers compute with the parts of weights in this process; a second call does nothing."""
    for layer in layers:
        for kind, compute in _CALLS.items():
            layer_methods.override_call(layer, kind, functools.partial(compute, layer))
        for kind in (keras.Sequential, graphs.Functional):
            layer_methods.override_call(layer, kind, functools.partial(call, layer, placing))
