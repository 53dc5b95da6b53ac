"""Cases of XLA programs on workers of parameter servers, in the chief of `parameter_server_cases`."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from parameter_server_cases import strategy

from tfdist import errors


def under_xla() -> dict[str, Any]:
    """Return by how much programs of XLA differ from the graphs of TensorFlow, and what one cannot be made of."""
    made = strategy(max_staleness=0)
    x, y = np.linspace(-1, 1, 52, dtype=np.float32).reshape(13, 4), np.linspace(0, 2, 13, dtype=np.float32)[:, None]
    found = []
    for is_compiled in (False, True):
        keras.utils.set_random_seed(7)
        with made.scope():
            layers = [keras.layers.Dense(3, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            # one whose updates do not make more of the rounding of small gradients, as those of Adam do
            model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"], jit_compile=is_compiled)
        history = model.fit(x, y, batch_size=5, epochs=2, verbose=0).history
        numbers = [*history["loss"], *history["mae"], *model.evaluate(x, y, batch_size=5, verbose=0)]
        found.append([np.asarray(numbers), model.predict(x, batch_size=5, verbose=0), *model.get_weights()])
    with made.scope():
        text = keras.layers.Lambda(lambda given: tf.strings.to_number(tf.strings.as_string(given)))
        words = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), text])
        words.compile("sgd", "mse", jit_compile=True)
    refused = ""
    try:
        words.predict(x, verbose=0)
    except errors.UnsupportedError as error:
        refused = str(error)
    # What other workers have failed with is kept by TensorFlow, and would be raised by whoever comes next.
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    plain.fit(x, y, verbose=0)
    return {"differ": max(float(abs(a - b).max()) for a, b in zip(*found, strict=True)), "refused": refused}
