"""`GradientNoiseScale` on one device: against NumPy, against the truth, and what it refuses."""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.integration.agents import says
from tests.refusals import refused
from tfdist.callbacks import GradientNoiseScale
from tfdist.callbacks.noise_scale_math import Averages, Norms
from tfdist.errors import ConfigError, ConfigTypeError

sys.path.insert(0, str(Path(__file__).parent / "cases"))
import noise_cases as cases

pytestmark = pytest.mark.quick


def test_it_measures_what_numpy_measures() -> None:
    averages, each = Averages(0.9), cases.gradients()
    for number in range(cases.STEPS):
        chosen = each[np.random.default_rng([0, number]).integers(len(each), size=cases.BATCH)]
        small = chosen.reshape(cases.PARTS, -1, each.shape[1]).mean(axis=1)
        big = float((small.mean(axis=0) ** 2).sum())
        sizes = {"small_batch": cases.BATCH // cases.PARTS, "big_batch": cases.BATCH}
        averages.add(Norms(**sizes, small=float((small**2).sum(axis=1).mean()), big=big))
    found = cases.measured(None)
    assert found["measurements"] == cases.STEPS
    assert found["noise"] == pytest.approx(averages.noise, rel=1e-5)
    assert found["squared_gradient"] == pytest.approx(averages.squared_gradient, rel=1e-5)
    assert found["last"] == pytest.approx(averages.noise_scale, rel=1e-5)


def test_it_comes_to_the_true_noise_scale() -> None:
    """10 batches of 400 examples: the standard error of the ratio is about 3 %."""
    found = cases.measured(None, batch_size=400, parts=40, decay=0.999)
    assert found["noise"] / found["squared_gradient"] == pytest.approx(cases.true_noise_scale(), rel=0.08)


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(model: keras.Model, data: Any, **options: Any) -> GradientNoiseScale:
    callback = GradientNoiseScale(data, **options)
    model.fit(cases.X, cases.Y, batch_size=10, epochs=2, verbose=0, callbacks=[callback])
    return callback


def test_datasets_begin_anew_and_a_sentence_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    batches = tf.data.Dataset.from_tensor_slices((cases.X, cases.Y)).batch(20)
    assert fit(compiled(), batches, batch_size=16, every=1).averages.measurements == 8
    assert says(capsys.readouterr().out, "average of 8 measurements", "batch of 16 ")


def test_it_goes_on_from_a_backup() -> None:
    whole = GradientNoiseScale((cases.X, cases.Y), batch_size=8, every=3, verbose=False)
    model = compiled()
    model.optimizer.learning_rate = 0.0
    for callback in (whole, first := GradientNoiseScale((cases.X, cases.Y), batch_size=8, every=3, verbose=False)):
        model.fit(cases.X, cases.Y, batch_size=10, epochs=1, verbose=0, callbacks=[callback])
    second = GradientNoiseScale((cases.X, cases.Y), batch_size=8, every=3, verbose=False)
    second.set_state(first.get_state())
    for callback in (whole, second):
        model.fit(cases.X, cases.Y, batch_size=10, epochs=1, verbose=0, callbacks=[callback])
    assert second.get_state() == pytest.approx(whole.get_state())
    assert second.averages.measurements == 3


def test_what_cannot_be_measured_is_refused() -> None:
    data = (cases.X, cases.Y)
    with refused(ConfigTypeError, name="data"):
        GradientNoiseScale(cases.X, batch_size=8)
    with refused(ConfigError, name="parts", received=3, mentions=("[2, 4, 8]",)):
        fit(compiled(), data, batch_size=8, parts=3)
    batches = tf.data.Dataset.from_tensor_slices(data).batch(7)
    with refused(ConfigError, name="data", received=7):
        fit(compiled(), batches, batch_size=8)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, activity_regularizer="l2")])
    model.compile("sgd")
    with refused(ConfigError, name=model.name):
        fit(model, data, batch_size=8)
