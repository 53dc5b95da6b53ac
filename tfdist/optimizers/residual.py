"""Residual blocks that begin as the identity."""

from typing import Any

import keras


def zero_last_gammas(model: keras.Model) -> list[str]:
    """Set the gamma of the last batch normalization of each residual branch to 0, and return the names of these layers.

    A block then begins as the identity, which permits a large learning rate from the first step. A branch is found if
    its batch normalization is a direct input of an `Add` layer. A normalized shortcut keeps its gamma if another branch
    of the same sum is longer.

    Args:
        model: a functional model, which may contain other models.
    Returns:
        The names of the layers, in the model's order.

    Example:
        >>> import keras
        >>> x = inputs = keras.Input((8,))
        >>> x = keras.layers.BatchNormalization(name="last")(keras.layers.Dense(8)(x))
        >>> zero_last_gammas(keras.Model(inputs, keras.layers.Add()([x, inputs])))
        ['last']

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 5.1.
    """
    layers = _layers_of(model)
    producers = {id(output): layer for layer in layers for output in _tensors(layer, "output")}
    found = []
    for layer in layers:
        if not isinstance(layer, keras.layers.Add):
            continue
        summands = [producers.get(id(tensor)) for tensor in _tensors(layer, "input")]
        branches = [one for one in summands if isinstance(one, keras.layers.BatchNormalization)]
        if len(branches) == len(summands):  # one of them is the shortcut: it has the fewest layers before it
            branches.remove(min(branches, key=lambda branch: _depth(branch, producers)))
        for branch in branches:
            if branch.gamma is not None:
                branch.gamma.assign(keras.ops.zeros_like(branch.gamma))
                found.append(branch.name)
    return found


def _layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    return [deeper for layer in model.layers for deeper in (_layers_of(layer) if hasattr(layer, "layers") else [layer])]


def _tensors(layer: keras.layers.Layer, side: str) -> list[Any]:
    """Return a layer's symbolic inputs or outputs; none unless it was called exactly once."""
    try:
        return keras.tree.flatten(getattr(layer, side))
    except (AttributeError, ValueError):
        return []


def _depth(layer: keras.layers.Layer, producers: dict[int, keras.layers.Layer]) -> int:
    """Return the length of the longest path from the input to a layer."""
    depth, front = 0, {id(layer): layer}
    while front:
        depth += 1
        tensors = [tensor for one in front.values() for tensor in _tensors(one, "input")]
        front = {id(producers[id(t)]): producers[id(t)] for t in tensors if id(t) in producers}
        front = {key: one for key, one in front.items() if not isinstance(one, keras.layers.InputLayer)}
    return depth
