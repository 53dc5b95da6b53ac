"""Attention by heads: each member of an axis attends with its own, and the projection back sums the results.

    heads_i = attention(x Q_i, x K_i, x V_i)        y = summed(heads_i O_i)

Shared heads of keys and values are where their heads of queries are. One sum travels in the forward pass, and one for
each input in the backward pass.

Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019, section 3. Their members draw dropout masks of their own; here the mask of all heads is drawn, and cut.
"""

from typing import Any

import tensorflow as tf

from tfdist.compat.keras import layer_methods as keras_layers
from tfdist.parallel.compute import keep_sharded
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.compute.partial_layers import way_of

_HEADS = -2  # of the dims of query, key and value


def call(
    layer: Any,
    query: Any,
    value: Any,
    key: Any = None,
    *masks: Any,
    return_attention_scores: bool = False,
    **options: Any,
) -> Any:
    """Compute as Keras' attention does; with this process's heads alone, if all its weights are cut by heads."""
    key = value if key is None else key
    options["return_attention_scores"] = return_attention_scores
    along = along_of(layer, query, value, key, *masks, **options)
    if along is None or not all(isinstance(one, tf.Tensor) for one in (query, value, key)):
        return keras_layers.own_call(type(layer), layer, query, value, key, *masks, **options)
    different = {id(one): one for one in (query, value, key)}
    if keep_sharded.is_among(layer, "entered"):
        entered = different
    else:
        entered = {name: keras_layers.with_mask_of(along.entering(one), one) for name, one in different.items()}
    query, value, key = (entered[id(one)] for one in (query, value, key))
    with keep_sharded.keeping(_kept(layer, along)):
        return keras_layers.own_call(type(layer), layer, query, value, key, **options)


def along_of(layer: Any, query: Any, *others: Any, return_attention_scores: bool = False, **options: Any) -> Any:
    """Return the axis along which an attention computes by heads when it is called so, or None where it does not."""
    mask = options.get("attention_mask")
    is_for_all_heads = mask is None or len(mask.shape) <= len(query.shape)
    is_plain = len(others) < 3 and is_for_all_heads and not return_attention_scores
    return _by_heads(layer) if is_plain else None


def _by_heads(layer: Any) -> Along | None:
    if not keras_layers.attends_as_keras(layer):
        return None
    back, *ways = [way_of(one) for one in (keras_layers.projection_back_of(layer), *keras_layers.projections_of(layer))]
    if back is None or back.by_columns or back.dim != _HEADS:
        return None
    is_alike = all(
        way is not None and way.by_columns and way.dim == _HEADS and way.along.axis == back.along.axis for way in ways
    )
    return back.along if is_alike else None


def _kept(layer: Any, along: Along) -> keep_sharded.Kept:
    projections = tuple(keras_layers.projections_of(layer))
    dropout, heads = keras_layers.dropout_of_scores(layer)
    return keep_sharded.Kept(
        giving=projections,
        entered=projections,
        taking=(keras_layers.projection_back_of(layer),),
        between=((dropout, along, heads),),
    )
