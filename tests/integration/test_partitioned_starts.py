"""The initial values of a variable that is made in parts, each by itself."""

import math
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow import partitioned

pytestmark = pytest.mark.quick

ROWS, WIDTH = 200, 300


def made(initializer: Any, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the initial values of a table in two parts that is too large to be made whole."""
    monkeypatch.setattr(partitioned, "WHOLE_BYTES", 0)
    monkeypatch.setattr(keras_variables, "being_made", lambda: (SimpleNamespace(), initializer))
    kwargs = {"initial_value": lambda: initializer((ROWS, WIDTH), dtype="float32")}
    shape, devices = tf.TensorShape([ROWS, WIDTH]), ["/device:CPU:0"] * 2
    found = partitioned.create(
        lambda **given: tf.Variable(given["initial_value"]), kwargs, shape, tf.float32, devices, [0, 100, ROWS], None
    )
    return found.read_value().numpy()


@pytest.mark.parametrize("seed", [None, 7])
def test_parts_begin_with_other_values_whoever_has_chosen_the_seed(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = np.split(made(keras.initializers.RandomUniform(seed=seed), monkeypatch), 2)
    assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("kind", [keras.initializers.GlorotUniform, keras.initializers.HeNormal])
def test_parts_begin_with_the_scale_of_the_whole(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    initializer = kind(seed=7)
    whole = initializer((ROWS, WIDTH)).numpy()
    assert math.isclose(made(initializer, monkeypatch).std(), whole.std(), rel_tol=0.02)


@pytest.mark.parametrize("kind", [keras.initializers.Identity, keras.initializers.Orthogonal])
def test_what_is_of_the_whole_is_cut_from_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if kind is keras.initializers.Identity else {"seed": 7}
    np.testing.assert_array_equal(made(kind(**options), monkeypatch), kind(**options)((ROWS, WIDTH)).numpy())
