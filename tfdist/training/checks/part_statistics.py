"""The warning that batch normalization takes statistics of a part of a batch, which differ from those of one device.

Keras' `BatchNormalization` has `synchronized=False` by default. Each replica then normalizes by the mean and variance
of its own rows. Many recipes for large batches are written for that, so it is no error, but it is another model for
another number of replicas.
"""

import keras

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer
from tfdist.training.checks import advice, step_probe

OF_REPLICAS = "each replica's part of a batch"


def normalizing(model: keras.Model) -> list[str]:
    """Return the names of the layers that normalize by the rows of a replica; frozen layers do not.

    Example:
        >>> layers = [keras.layers.BatchNormalization(name=name) for name in ("one", "two")]
        >>> layers[0].trainable = False
        >>> normalizing(keras.Sequential(layers))
        ['two']
    """
    layers = keras_trainer.layers(model)
    found = [one for one in layers if isinstance(one, keras.layers.BatchNormalization)]
    return [one.name for one in found if not one.synchronized and one.trainable]


def warn(model: keras.Model, workers: Workers, part: str | None = OF_REPLICAS) -> None:
    """Let the chief warn once for each model whose layers normalize by the rows of ``part``; None: a whole batch."""
    if part is not None and (names := normalizing(model)):
        step_probe.warn_once(model, workers, advice.of_statistics(model, names, part))
