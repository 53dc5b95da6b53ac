"""The models that the tests of model parallelism train."""

import keras
import numpy as np
import tensorflow as tf


def mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(12, activation="tanh", kernel_regularizer="l2"),
            layers.Dense(6, activation="tanh", kernel_constraint="unit_norm", kernel_initializer="orthogonal"),
            layers.Dense(2),
        ]
    )


class WordsInPlaces(keras.layers.Layer):
    """Looks up words, twice in one table, and their places, which are the same in every example."""

    def __init__(self) -> None:
        super().__init__()
        self.words = keras.layers.Embedding(12, 6)
        self.places = keras.layers.Embedding(6, 6)

    def call(self, words: tf.Tensor) -> tf.Tensor:
        return self.words(words) + self.words(words[:, ::-1]) + self.places(keras.ops.arange(3))


def embedding() -> keras.Model:
    layers = keras.layers
    words = keras.Input((3,), dtype="int32")
    return keras.Model(words, layers.Dense(2)(layers.Flatten()(WordsInPlaces()(words))))


def convolution() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(6, 3, activation="relu", padding="same"),
            layers.BatchNormalization(synchronized=True),
            layers.SpatialDropout2D(0.3),
            layers.MaxPooling2D(),
            layers.Conv2D(6, 2, activation="tanh"),
            layers.BatchNormalization(synchronized=True),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(2),
        ]
    )


def recurrent() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([keras.Input((6, 6)), layers.LSTM(6, unroll=False), layers.Dense(2)])


def attention() -> keras.Model:
    """Two sublayers of a transformer, one of them a Sequential model in the functional one."""
    layers = keras.layers
    words = keras.Input((3,), dtype="int32")
    embedded = layers.Embedding(12, 6)(words)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=3, dropout=0.2)(embedded, embedded, use_causal_mask=True)
    attended = attended + layers.GroupQueryAttention(3, 4, 2, use_gate=True, dropout=0.2, name="grouped")(
        embedded, attended, attention_mask=keras.ops.ones((1, 3, 3), "bool")
    )
    wide = [layers.Dense(8, activation="gelu", name="wide"), layers.Dropout(0.2), layers.Dense(6, name="narrow")]
    narrow = keras.Sequential(wide)(layers.LayerNormalization()(embedded + attended))
    return keras.Model(words, layers.Dense(2, name="last")(layers.Flatten()(embedded + narrow)))


def sequence() -> keras.Model:
    """A block of a transformer with a table of places, layers that need whole activations, and a product of both."""
    layers = keras.layers
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 6)(words) + np.linspace(0, 1, 36, dtype="float32").reshape(6, 6)
    normal = layers.LayerNormalization()(layers.Dropout(0.2)(x))
    x = x + layers.MultiHeadAttention(6, 3, dropout=0.2)(normal, normal, use_causal_mask=True)
    between = [layers.Dense(12, "gelu"), layers.Dropout(0.2), layers.Dense(6), layers.Dropout(0.2)]
    x = x + keras.Sequential(between)(layers.RMSNormalization()(x))
    whole = keras.ops.flip(layers.Conv1D(6, 3, padding="same")(x), axis=1)
    gated = layers.Dense(12)(x) * layers.Dense(12, "sigmoid", use_bias=False)(x) / 2
    x = layers.Multiply()([x, whole]) + layers.Dense(6)(gated)
    return keras.Model(words, layers.Dense(2)(layers.Flatten()(layers.LayerNormalization()(x))))


def einsums() -> keras.Model:
    """Return a model cut by columns and then by rows, with biases along several axes and a softmax between."""
    layers = keras.layers
    made = [layers.EinsumDense("abc,cd->abd", (6, 4), activation="tanh", bias_axes="b")]
    made += [layers.Activation("relu"), layers.EinsumDense("abd,de->abe", (6, 6), bias_axes="e")]
    made += [layers.Dense(8, "softmax"), layers.Dense(4), layers.Dense(4), layers.Flatten(), layers.Dense(2)]
    return keras.Sequential([keras.Input((6, 6)), *made])
