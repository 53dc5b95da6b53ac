"""Optimizers that a `train_step` of the user's builds in its first step, built for the slots of a backup.

A GAN has two optimizers, and its step alone says which weights each of them trains. A backup says the same: the name of
a slot has those of its optimizer and of its weight. Whether the variables are then those of the backup is checked
afterwards, for all of them.
"""

from collections.abc import Callable, Iterable, Mapping

import keras

from tfdist.callbacks.backup.state_names import VARIABLE
from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras import optimizer as keras_optimizer


def build_optimizers(model: keras.Model, own: Callable[[], Mapping[str, keras.Variable]], saved: Iterable[str]) -> None:
    """Build each optimizer that is not built for the weights whose slots are among the saved names.

    ``own`` returns the model's variables by name.
    """
    unbuilt = [one for one in keras_trainer.optimizers(model) if not one.built]
    if not unbuilt:
        return
    ours = own()
    name_of = {id(variable): name for name, variable in ours.items()}
    weights = {name_of[id(one)]: one for one in model.trainable_variables if id(one) in name_of}
    missing = [name for name in saved if name not in ours]
    for optimizer in unbuilt:
        counters = [name_of.get(id(one.iterations), "") for one in keras_optimizer.chain(optimizer)]
        prefixes = [counter.rpartition("/")[0] for counter in counters]  # of the names of all their variables
        trained = trained_weights(list(weights), missing, [prefix for prefix in prefixes if prefix])
        if trained:
            with model.distribute_strategy.scope():
                optimizer.build([weights[name] for name in trained])


def trained_weights(weights: Iterable[str], slots: Iterable[str], optimizers: Iterable[str]) -> list[str]:
    """Return the weights for which one of the optimizers has a slot, in their order.

    Example:
        >>> slots = ["variable/adam/dense/kernel/momentum", "variable/adam_1/dense_1/kernel/momentum"]
        >>> weights = ["variable/dense/kernel", "variable/dense_1/kernel"]
        >>> trained_weights(weights, slots, ["variable/adam"]), trained_weights(weights, slots, ["variable/adam_1"])
        (['variable/dense/kernel'], ['variable/dense_1/kernel'])
    """
    places = [f"{one}/" for one in optimizers]
    rests = [slot[len(place) :] for slot in slots for place in places if slot.startswith(place)]
    owners = {rest.rpartition("/")[0] for rest in rests}
    return [name for name in weights if name.removeprefix(f"{VARIABLE}/") in owners]
