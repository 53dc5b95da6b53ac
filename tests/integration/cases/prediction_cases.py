"""Cases of models that only predict, and of what they compare: each runs in a process with two logical CPUs."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from batch_wide_cases import BATCH, STRATEGY, X
from hearing import heard
from keras import ops


class Predicting(keras.Sequential):
    """A model of one layer, with a function in its own `predict_step`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__([keras.layers.Dense(3)])
        self.function = function

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"outputs": self(x), "more": self.function(self(x))}


def said_of_predictions() -> dict[str, list[str]]:
    """Return the warnings about models that only predict: two compare rows, the others do not."""

    def of(activation: Any, **options: Any) -> Any:
        return keras.Sequential([keras.layers.Dense(3, activation=activation, **options)])

    makers = {
        "centring": lambda: of(lambda h: h - ops.mean(h, axis=0), name="centring"),
        "rows apart": lambda: of(lambda h: h - ops.mean(h, axis=1, keepdims=True)),
        "ranks": lambda: Predicting(lambda outputs: ops.argsort(outputs[:, 0])),
        "largest": lambda: Predicting(lambda outputs: ops.argmax(outputs, axis=1)),
        "texts": _of_texts,
        "texts of one length": lambda: _of_texts(output_sequence_length=4),
    }
    found = {}
    for name, make in makers.items():
        with STRATEGY.scope():
            model = make()
            model.compile()
        rows = tf.constant(["a", "a b c", "c b", "b"]) if name.startswith("texts") else X
        with heard() as said:
            for _ in range(2):
                if name == "ranks":
                    model.predict_on_batch(rows)
                else:
                    model.predict(rows, batch_size=BATCH, verbose=0)
        found[name] = said
    return found


def _of_texts(**options: Any) -> keras.Model:
    """Return a model of the words of a text, with those that pad it."""
    words = keras.layers.TextVectorization(vocabulary=["a", "b", "c"], name="words", **options)
    return keras.Sequential([words, keras.layers.Embedding(6, 2), keras.layers.GlobalAveragePooling1D()])
