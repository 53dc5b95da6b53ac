"""Layers and operations that compute with other rows than an output's own, as `row_mixing` and pipelines find them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import loss as keras_loss
from tfdist.parallel.pipeline import whole_batches
from tfdist.parallel.pipeline.division import Division
from tfdist.training.checks import row_mixing, step_probe
from tfdist.training.replica import batch_rows


class Deviating(layers.Layer):
    """Adds the deviation of a batch."""

    def call(self, inputs: Any) -> Any:
        return inputs + ops.mean(ops.std(inputs, axis=0))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Residual(layers.Layer):
    """Computes each row by itself, with layers of Keras inside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = keras.Sequential([layers.Dense(4, "relu"), layers.Dropout(0.5), layers.LayerNormalization()])

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + self.inner(inputs, training=training)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Calling(layers.Dense):
    """Computes with the mean of a batch before Keras calls it."""

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        return super().__call__(inputs - ops.mean(inputs, axis=0, keepdims=True), *args, **options)


class Backward(layers.Layer):
    """Changes gradients: each is divided by the norm of all of a batch, or clipped by itself."""

    def __init__(self, by: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.by = by

    def call(self, inputs: Any) -> Any:
        return tf.custom_gradient(lambda x: (tf.identity(x), self.by))(inputs)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Noise(Deviating):
    """Draws numbers that no seed of Keras controls."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs))


class Total(layers.Layer):
    """Returns one number for a batch."""

    def call(self, inputs: Any) -> Any:
        return ops.sum(inputs)

    def compute_output_shape(self, shape: Any) -> Any:
        return ()


MAKERS: dict[str, Callable[[Any], Any]] = {
    "deviating": lambda x: Deviating(name="deviating")(x),
    "over_rows": lambda x: layers.Softmax(axis=0, name="over_rows")(x),
    "centred": lambda x: layers.Lambda(lambda h: h - ops.mean(h, axis=0), name="centred")(x),
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "activated": lambda x: layers.Dense(3, activation=lambda h: ops.softmax(h, axis=0), name="activated")(x),
    "inside": lambda x: keras.Sequential([keras.Input((4,)), Deviating(name="inside")], name="nested")(x),
}
APART: dict[str, Callable[[Any], Any]] = {
    "residual": lambda x: Residual()(x),
    "doubled": lambda x: layers.Lambda(lambda h: 2 * h)(x) + x,
    "over features": lambda x: x - ops.mean(x, axis=1, keepdims=True),
    "normalized": lambda x: layers.BatchNormalization()(x),
    "noise": lambda x: Noise()(x),
    "activated": lambda x: layers.Dense(3, activation=lambda h: h * ops.sigmoid(h))(x),
    "clipped gradients": lambda x: Backward(lambda dy: tf.clip_by_value(dy, -0.01, 0.01))(x),
    "gradients of a library": lambda x: layers.Lambda(tf.nn.silu)(x),
}


def model_of(make: Callable[[Any], Any]) -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(2)(make(layers.Dense(4)(inputs))))


def _mixes(model: keras.Model) -> bool:
    data = (tf.constant(np.random.default_rng(0).normal(size=(7, 4)), tf.float32), tf.zeros([7, 2]))
    how = row_mixing.Pass(training=True, tolerance=1e-4, meets=False)
    return row_mixing.mixes(model, tf.distribute.get_strategy(), data, how)


@pytest.mark.parametrize("name", MAKERS)
def test_what_compares_rows_is_found(name: str) -> None:
    model = model_of(MAKERS[name])
    assert row_mixing.suspects(model)
    assert _mixes(model)
    assert f"{name}'" in whole_batches.comparing_call(Division(model, 2, "auto"))


@pytest.mark.parametrize("name", APART)
def test_what_keeps_rows_apart_is_left_alone(name: str) -> None:
    model = model_of(APART[name])
    before = [value.numpy().tolist() for value in model.variables]
    assert not _mixes(model)
    assert whole_batches.comparing_call(Division(model, 2, "auto")) == ""
    assert [value.numpy().tolist() for value in model.variables] == before


def test_layers_of_keras_need_no_trial() -> None:
    assert not row_mixing.suspects(keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.BatchNormalization()]))


def test_gradients_of_ones_own_that_compare_rows_are_found() -> None:
    assert _mixes(model_of(lambda x: Backward(lambda dy: dy / tf.norm(dy))(x)))


def test_layers_that_look_at_a_whole_batch_are_suspects() -> None:
    texts = layers.TextVectorization(name="texts")
    spectrum = layers.MelSpectrogram(name="spectrum")
    apart = [layers.TextVectorization(output_sequence_length=5), layers.MelSpectrogram(power_to_db=False)]
    model = keras.Sequential([layers.Dense(2, "silu", kernel_regularizer=lambda w: 0.1), *apart])
    assert not row_mixing.suspects(model)
    calling, counted = Calling(3, name="calling"), layers.Softmax(axis=-2, name="counted_from_the_end")
    found = row_mixing.suspects(keras.Sequential([texts, spectrum, calling, counted]))
    assert found == ["texts", "spectrum", "calling", "counted_from_the_end"]


def test_layers_that_blend_rows_are_told(caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([layers.MixUp(name="mix"), layers.RandomFlip(), layers.CutMix(name="cut")])
    for part in (None, row_mixing.OF_REPLICAS, row_mixing.OF_REPLICAS):
        step_probe.warn_of_parts(model, Workers(), part)
    assert [("mix" in text, "cut" in text) for text in caplog.messages] == [(True, True)]


@pytest.mark.parametrize(
    ("loss", "outputs", "compares"),
    [
        (keras.losses.CosineSimilarity(axis=-2), [2, 3], True),
        (keras.losses.CosineSimilarity(axis=-2), [2, 3, 4], False),
        (keras.losses.CosineSimilarity(axis=-2), None, True),
        (keras.losses.CosineSimilarity(), None, False),
        (keras.losses.Dice(axis=(-2, -1)), [2, 3, 4], False),
        (keras.losses.Dice(axis=(-2, -1)), [2, 3], True),
        (keras.losses.Tversky(), [2, 3], True),
    ],
)
def test_losses_over_rows_are_known(loss: keras.losses.Loss, outputs: Any, compares: bool) -> None:
    assert keras_loss.compares_examples(loss, None if outputs is None else tf.zeros(outputs)) is compares


def test_one_number_for_a_batch_compares_rows() -> None:
    inputs = keras.Input((4,))
    assert _mixes(keras.Model(inputs, Total()(inputs)))


def test_a_model_without_weights_yet_gets_those_of_its_first_call() -> None:
    model = keras.Sequential([layers.Dense(3), Deviating()])
    assert _mixes(model)
    assert [tuple(weight.shape) for weight in model.weights] == [(4, 3), (3,)]
    assert np.any(model.weights[0].numpy())


@pytest.mark.parametrize(("fixed", "told"), [(8, 1), (3, 0)])
def test_an_error_of_a_fixed_batch_size_is_explained(fixed: int, told: int) -> None:
    with pytest.raises(ValueError, match=str(fixed)) as met, batch_rows.size_explained((None, tf.zeros((4, 2))), 2):
        raise ValueError(f"dimensions {fixed} and 4")
    assert [note.count("4 of the 8 rows") for note in getattr(met.value, "__notes__", [])] == [1] * told
