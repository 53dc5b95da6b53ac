"""Optimizers for large batches, against what their papers say, written in NumPy."""

from typing import Any

import keras
import numpy as np
import pytest

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.optimizers import LARS, Warmup, zero_last_gammas

STEPS = 12
RATES = (0.5, 0.5, 2.0)

pytestmark = pytest.mark.quick


def lars(
    weights: list[np.ndarray],
    gradients: list[list[np.ndarray]],
    adapted: list[bool],
    *,
    momentum: float,
    decay: float,
    trust: float,
    nesterov: bool,
    corrected: bool,
) -> list[np.ndarray]:
    """You, Gitman, Ginsburg 2017, algorithm 1; in float64."""
    weights = [weight.astype(np.float64) for weight in weights]
    velocities = [np.zeros_like(weight) for weight in weights]
    for step, given in enumerate(gradients):
        rate = RATES[step % len(RATES)]
        for i, gradient in enumerate(given):
            change = gradient.astype(np.float64)
            if adapted[i]:
                size, slope = np.linalg.norm(weights[i]), np.linalg.norm(gradient)
                ratio = trust * size / (slope + decay * size + 1e-9) if size > 0 and slope > 0 else 1.0
                change = ratio * (change + decay * weights[i])
            if corrected:
                velocities[i] = momentum * velocities[i] + change
                ahead = momentum * velocities[i] + change if nesterov else velocities[i]
                weights[i] = weights[i] - rate * ahead
            else:
                velocities[i] = momentum * velocities[i] + rate * change
                ahead = momentum * velocities[i] + rate * change if nesterov else velocities[i]
                weights[i] = weights[i] - ahead
    return weights


def lamb(weights: list[np.ndarray], gradients: list[list[np.ndarray]], rate: float) -> list[np.ndarray]:
    """You et al. 2020, algorithm 2, with phi(z) = z and without decay, as Keras' `Lamb` is by default; in float64."""
    weights = [weight.astype(np.float64) for weight in weights]
    first, second = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    for step, given in enumerate(gradients, start=1):
        for i, gradient in enumerate(given):
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient.astype(np.float64) ** 2
            update = (first[i] / (1 - 0.9**step)) / (np.sqrt(second[i] / (1 - 0.999**step)) + 1e-7)
            size, length = np.linalg.norm(weights[i]), np.linalg.norm(update)
            weights[i] = weights[i] - rate * (size / length if size > 0 and length > 0 else 1.0) * update
    return weights


def drawn(shapes: list[tuple[int, ...]]) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=shape).astype("float32") for shape in shapes]
    gradients = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(STEPS)]
    return weights, gradients


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lars_is_that_of_its_paper(decay: float, corrected: bool, nesterov: bool) -> None:
    weights, gradients = drawn([(3, 4), (4,), (2, 2), (5,)])
    weights[2][:] = 0  # nothing to be in proportion to
    gradients[3][0][:] = 0
    names = ["dense_kernel", "dense_bias", "zeros_kernel", "batch_norm_gamma"]
    variables = [keras.Variable(weight, name=name) for weight, name in zip(weights, names, strict=True)]
    optimizer = LARS(
        RATES[0], weight_decay=decay, trust_coefficient=0.1, nesterov=nesterov, momentum_correction=corrected
    )
    for step, given in enumerate(gradients):
        optimizer.learning_rate.assign(RATES[step % len(RATES)])
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in given], variables)
    expected = lars(
        weights,
        gradients,
        [True, False, True, False],
        momentum=0.9,
        decay=decay,
        trust=0.1,
        nesterov=nesterov,
        corrected=corrected,
    )
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-5, atol=2e-6)


def test_keras_lamb_is_that_of_its_paper() -> None:
    weights, gradients = drawn([(3, 4), (4,)])
    variables = [keras.Variable(weight) for weight in weights]
    optimizer = keras.optimizers.Lamb(0.01)
    for given in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in given], variables)
    for variable, value in zip(variables, lamb(weights, gradients, 0.01), strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-5)


def test_the_step_follows_the_size_of_the_weights_and_not_of_the_gradient() -> None:
    """Both layers move by the same part of their size, whatever their gradients are: what LARS is for."""
    variables = [keras.Variable(np.full((4, 4), value, "float32"), name="kernel") for value in (0.01, 100.0)]
    before = [variable.numpy() for variable in variables]
    gradients = [np.full((4, 4), value, "float32") for value in (1e4, 1e-4)]
    LARS(1.0, momentum=0.0).apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    moved = [
        np.linalg.norm(variable.numpy() - old) / np.linalg.norm(old)
        for variable, old in zip(variables, before, strict=True)
    ]
    assert moved == pytest.approx([1e-3, 1e-3], rel=1e-2)


def test_half_precision_does_not_overflow_in_a_norm() -> None:
    variable = keras.Variable(np.full((64, 64), 30.0, "float16"), name="kernel", dtype="float16")
    gradient = keras.ops.convert_to_tensor(np.full((64, 64), 300.0, "float16"))
    LARS(1.0, momentum=0.0, trust_coefficient=0.1).apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), 27.0, rtol=1e-2)


def schedules() -> list[Any]:
    return [
        0.4,
        keras.optimizers.schedules.CosineDecay(0.4, 20),
        keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.4, 0.1]),
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_warmup_rises_and_then_is_the_schedule(which: int, steps: int) -> None:
    schedule = schedules()[which]
    warmup = Warmup(schedule, steps, initial=0.1)
    rates = [float(warmup(step)) for step in range(steps + 10)]
    rising = np.linspace(0.1, 0.4, steps + 2)[1:-1]
    np.testing.assert_allclose(rates[:steps], rising, rtol=1e-5)
    later = [schedule if isinstance(schedule, float) else float(schedule(step)) for step in range(10)]
    np.testing.assert_allclose(rates[steps:], later, rtol=1e-6)


def test_both_are_saved_with_a_model(tmp_path: Any) -> None:
    schedule = Warmup(keras.optimizers.schedules.CosineDecay(2.0, 50), 5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(LARS(schedule, weight_decay=1e-4, exclude=["bias"], clipnorm=1.0), "mse")
    x, y = np.ones((8, 3), "float32"), np.zeros((8, 2), "float32")
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    assert float(again.optimizer.learning_rate) == float(model.optimizer.learning_rate)
    for one in (model, again):
        one.fit(x, y, epochs=1, verbose=0)
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LARS(momentum=1.5), ConfigError),
        (lambda: LARS(weight_decay=-1.0), ConfigError),
        (lambda: LARS(trust_coefficient=0.0), ConfigError),
        (lambda: Warmup(0.1, -1), ConfigError),
        (lambda: Warmup("cosine", 1), ConfigTypeError),
        (lambda: Warmup(0.1, 1, initial=-0.1), ConfigError),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_residual_blocks_begin_as_the_identity() -> None:
    x = inputs = keras.Input((8,))
    for number, projects in enumerate((False, True)):
        branch = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(x))
        branch = keras.layers.BatchNormalization(name=f"last_{number}")(keras.layers.Dense(8)(branch))
        shortcut = keras.layers.BatchNormalization()(keras.layers.Dense(8)(x)) if projects else x
        x = keras.layers.Add()([shortcut, branch])
    model = keras.Model(inputs, keras.Model(inputs, x, name="inner")(inputs))
    assert zero_last_gammas(model) == ["last_0", "last_1"]
    zero = {weight.path for weight in model.weights if weight.name == "gamma" and not np.any(weight.numpy())}
    assert len(zero) == 2
