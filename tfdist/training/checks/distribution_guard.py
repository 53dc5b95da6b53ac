"""A distribution of Keras that is set while a strategy trains: TensorFlow's backend would not heed it."""

import keras
import tensorflow as tf

from tfdist.errors import UnsupportedError


def require_none_else(strategy: tf.distribute.Strategy) -> None:
    """Raise if Keras was asked to distribute training otherwise than the strategy does."""
    distribution = keras.distribution.distribution()
    heeds = getattr(strategy, "heeds", None)
    if distribution is None or (heeds is not None and heeds(distribution)):
        return
    replicas = sorted(name.lower().rsplit("device:", 1)[-1] for name in strategy.extended.worker_devices)
    asked = sorted(str(device).lower() for device in distribution.device_mesh.devices.flatten())
    if isinstance(distribution, keras.distribution.DataParallel) and asked == replicas:
        return
    raise UnsupportedError(
        f"keras.distribution.set_distribution was given {type(distribution).__name__} over {', '.join(asked)}, which "
        f"Keras does not heed on TensorFlow, and {type(strategy).__name__} trains on {', '.join(replicas)}. Make the "
        "strategy by tfdist.strategies.from_distribution(), or take the distribution back: "
        "keras.distribution.set_distribution(None).",
        name="keras.distribution.set_distribution",
        received=f"{type(distribution).__name__} over {', '.join(asked)}",
    )
