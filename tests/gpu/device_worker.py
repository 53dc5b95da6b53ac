"""The trainings for the checks of devices, in this process and in processes of their own.

python device_worker.py HOW FILE        "from_environment", "reproducible" or "recorded"; the results go into FILE
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.monitor.recording.rows import Column
from tfdist.training import step_timestamps

FIRST_SCALE = 2.0**40  # of a loss whose scaled gradients are infinite in float16
_HALF_MEGABYTES = 6_000  # of a card that is split in two
_EXAMPLES, _BATCH = 328, 64  # the last batch is smaller
STEPS = -(-_EXAMPLES // _BATCH)  # of an epoch


class Trained(NamedTuple):
    """Weights, and at the end the losses; and the scale of the loss, or 1."""

    values: list[np.ndarray]
    scale: float

    def write(self, path: Path) -> None:
        np.savez(path, *self.values, self.scale)

    @classmethod
    def read(cls, path: Path) -> "Trained":
        with np.load(path) as file:
            *values, scale = (file[name] for name in file.files)
        return cls(values, float(scale))


def two_devices() -> list[str]:
    """Two GPUs; or the halves of one; or two logical CPUs. Nothing may have started TensorFlow."""
    exact()
    cards = tf.config.list_physical_devices("GPU")
    if not cards:
        tfdist.strategies.use_logical_cpus(2)
        return ["CPU:0", "CPU:1"]
    if len(cards) == 1:
        half = tf.config.LogicalDeviceConfiguration(memory_limit=_HALF_MEGABYTES)
        tf.config.set_logical_device_configuration(cards[0], [half, half])
    return ["GPU:0", "GPU:1"]


def exact() -> None:
    """Multiply float32 in float32, where GPUs may take TF32."""
    tf.config.experimental.enable_tensor_float_32_execution(False)


def convolutional() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(synchronized=True, momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(16, 3, strides=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32, "gelu"),
            layers.Dense(4, dtype="float32"),
        ]
    )


def tower() -> keras.Model:
    """Layers that follow one another, for a pipeline."""
    hidden = [keras.layers.Dense(64, "gelu", name=f"hidden_{number}") for number in range(6)]
    return keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), *hidden, keras.layers.Dense(4)])


def train(
    strategy: tf.distribute.Strategy | None,
    *,
    network: Callable[[], keras.Model] = convolutional,
    policy: str = "float32",
    adapt: Callable[[Any], Any] = lambda optimizer: optimizer,
    **compiled: Any,
) -> Trained:
    """Train two epochs."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    draw = np.random.default_rng(5)
    x = draw.standard_normal((_EXAMPLES, 16, 16, 3)).astype(np.float32)
    y = (np.abs(x).sum(axis=(1, 2, 3)) % 4).astype(np.int32)
    try:
        with tf.device(None) if strategy is None else strategy.scope():
            model = network()
            optimizer = adapt(keras.optimizers.Adam(1e-3, global_clipnorm=1.0))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"], **compiled)
        losses = model.fit(x, y, batch_size=_BATCH, epochs=2, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    scale = float(getattr(model.optimizer, "dynamic_scale", 1.0))
    return Trained([*map(np.asarray, model.get_weights()), np.array(losses)], scale)


def _stamps() -> np.ndarray:
    """Of each step the begin, the loss, the gradients, the sums and the end, in seconds of the wall clock."""
    deadline = time.monotonic() + 60
    while (found := step_timestamps.taken())[0] < 2 * STEPS:
        assert time.monotonic() < deadline, f"{found[0]} of {2 * STEPS} steps have stamps"
    count, ring = found
    rows = np.asarray(ring)[:count, : Column.LOSS - Column.GRAPH_BEGIN]
    return rows[np.argsort(rows[:, 0])]


def scaled(optimizer: Any) -> Any:
    """An optimizer whose first steps overflow float16, until the scale has fallen."""
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=FIRST_SCALE)


def main(how: str, path: str) -> None:
    if how == "reproducible":
        tfdist.reproducible(17)
        strategy: tf.distribute.Strategy = tfdist.strategies.MirroredStrategy(two_devices())
        train(strategy).write(Path(path))
        return
    if how == "recorded":
        step_timestamps.ask()
        strategy = tfdist.strategies.MirroredStrategy(two_devices())
        began = time.time()
        train(strategy)
        ended = time.time()
        np.savez(path, began=began, ended=ended, rows=_stamps())
        return
    exact()
    strategy = tfdist.strategies.from_environment()
    found = train(strategy)
    if strategy.is_chief:
        found.write(Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
