"""Giving the layers of a model their way to compute with parts."""

import functools
from typing import Any

import keras

from tfdist.compat.keras import layer_methods as keras_layers
from tfdist.compat.keras.symbolic import graphs
from tfdist.parallel.compute import attention, sequence_parallel
from tfdist.parallel.compute.partial_layers import CALLS

_CALLS: dict[Any, Any] = {
    **CALLS,
    **dict.fromkeys(keras_layers.ATTENTIONS, attention.call),
}


def adapt(layers: list[keras.layers.Layer], placing: sequence_parallel.Placing) -> None:
    """Let layers of a model, and itself, compute where their weights lie; those that were adapted stay so."""
    for layer in layers:
        for kind, call in _CALLS.items():
            keras_layers.override_call(layer, kind, functools.partial(call, layer))
        for kind in (keras.Sequential, graphs.Functional):
            keras_layers.override_call(layer, kind, functools.partial(sequence_parallel.call, layer, placing))
