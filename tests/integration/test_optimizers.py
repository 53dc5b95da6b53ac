"""Optimizers for large batches, against what their papers say, written in NumPy."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.agents import says
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.optimizers import LARS, Warmup, zero_last_gammas

STEPS = 5
RATES = (0.5, 0.5, 2.0)
PATHS = ("norm_free_net/unbiased_dense/kernel", "norm_free_net/unbiased_dense/bias", "beta/gamma", "embeddings")
# patterns, and the numbers of the paths that they leave out; None also leaves out what has fewer than two dimensions
EXCLUDED = {
    None: (1, 2),
    (): (),
    ("bias",): (1,),
    ("norm", "bed", "/unbiased", "^bias"): (),
    ("unbiased_.*", "gamma$"): (0, 1, 2),
    ("norm_free_net/unbiased_dense",): (0, 1),
    ("embed.*s",): (3,),
}
ANY = settings(max_examples=40, deadline=None, database=None)

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
    for step, grads in enumerate(gradients):
        rate = RATES[step % len(RATES)]
        for i, gradient in enumerate(grads):
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


def lamb(
    weights: list[np.ndarray],
    gradients: list[list[np.ndarray]],
    rate: float,
    beta_1: float,
    beta_2: float,
    decay: float,
) -> list[np.ndarray]:
    """You et al. 2020, algorithm 2, with phi(z) = z, and the decay decoupled, before the update, as Keras does it."""
    weights = [weight.astype(np.float64) for weight in weights]
    first, second = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    for step, grads in enumerate(gradients, start=1):
        for i, gradient in enumerate(grads):
            first[i] = beta_1 * first[i] + (1 - beta_1) * gradient
            second[i] = beta_2 * second[i] + (1 - beta_2) * gradient.astype(np.float64) ** 2
            update = (first[i] / (1 - beta_1**step)) / (np.sqrt(second[i] / (1 - beta_2**step)) + 1e-7)
            weights[i] = weights[i] - rate * decay * weights[i]
            size, length = np.linalg.norm(weights[i]), np.linalg.norm(update)
            weights[i] = weights[i] - rate * (size / length if size > 0 and length > 0 else 1.0) * update
    return weights


@st.composite
def trainings(draw: st.DrawFn) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Weights of up to four variables, some of them zero, and their gradients in each step, some of them zero too."""
    shapes = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=len(PATHS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [10.0 ** draw(st.integers(-2, 2)) for _ in range(2)]
    weights = [(sizes[0] * rng.normal(size=shape)).astype("float32") for shape in shapes]
    gradients = [[(sizes[1] * rng.normal(size=shape)).astype("float32") for shape in shapes] for _ in range(STEPS)]
    places = st.integers(0, len(shapes) - 1)
    for place in draw(st.lists(places, max_size=1)):
        weights[place][:] = 0  # nothing to be in proportion to
    for place in draw(st.lists(places, max_size=2)):
        gradients[draw(st.integers(0, STEPS - 1))][place][:] = 0
    return weights, gradients


def variable(value: Any, path: str) -> keras.Variable:
    """A variable at a path."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


def applied(
    optimizer: Any, weights: list[np.ndarray], gradients: list[list[np.ndarray]], rates: tuple[float, ...]
) -> list[np.ndarray]:
    variables = [variable(weight, path) for weight, path in zip(weights, PATHS, strict=False)]
    for step, grads in enumerate(gradients):
        optimizer.learning_rate.assign(rates[step % len(rates)])
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in grads], variables)
    return [variable.numpy() for variable in variables]


def assert_close(ours: list[np.ndarray], expected: list[np.ndarray], before: list[np.ndarray], part: float) -> None:
    """Compare to a part of what the numbers are, or were: they may be less in the end than on the way."""
    for mine, theirs, old in zip(ours, expected, before, strict=True):
        size = max(np.abs(theirs).max(), np.abs(old).max(), 1e-2)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=part * size)


@ANY
@given(
    training=trainings(),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    decay=st.sampled_from([0.0, 1e-4, 0.01, 0.3]),
    trust=st.sampled_from([0.001, 0.02, 0.1, 0.3]),
    nesterov=st.booleans(),
    corrected=st.booleans(),
    exclude=st.sampled_from(list(EXCLUDED)),
)
def test_lars_is_that_of_its_paper(
    training: Any,
    momentum: float,
    decay: float,
    trust: float,
    nesterov: bool,
    corrected: bool,
    exclude: tuple[str, ...] | None,
) -> None:
    weights, gradients = training
    optimizer = LARS(
        RATES[0],
        momentum=momentum,
        weight_decay=decay,
        trust_coefficient=trust,
        nesterov=nesterov,
        momentum_correction=corrected,
        exclude=exclude,
    )
    expected = lars(
        weights,
        gradients,
        [
            place not in EXCLUDED[exclude] and (exclude is not None or weight.ndim > 1)
            for place, weight in enumerate(weights)
        ],
        momentum=momentum,
        decay=decay,
        trust=trust,
        nesterov=nesterov,
        corrected=corrected,
    )
    assert_close(applied(optimizer, weights, gradients, RATES), expected, weights, 3e-5)


def test_lars_says_once_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="unbiased_dense")], name="norm_free_net")
    model.compile(LARS(0.1, exclude=["(?i)BIAS", "(?i)Norm"]), "mse")
    model.fit(np.ones((8, 3)), np.zeros((8, 2)), epochs=2, batch_size=4, verbose=0)
    adapted, useless = [record.message for record in caplog.records if record.name == "tfdist"]
    assert says(adapted, "LARS ", "1 of 2 variables", "norm_free_net/unbiased_dense/bias")
    assert says(useless, "LARS", "'(?i)Norm'", "norm_free_net/unbiased_dense/kernel", "'(?i).*Norm.*'")


def test_lars_leaves_out_biases_and_normalization_whatever_their_layers_are_called() -> None:
    layers = [
        keras.layers.Dense(4, name="bias"),
        keras.layers.BatchNormalization(name="dense"),
        keras.layers.LayerNormalization(axis=(1, 2), name="kernel"),
        keras.layers.MultiHeadAttention(2, 2, name="abnormal"),
    ]
    x = keras.Input((3, 5))
    model = keras.Model(x, layers[3](*2 * [layers[2](layers[1](layers[0](x)))]), name="norm_free_net")
    optimizer = LARS(0.1)
    optimizer.build(model.trainable_variables)
    adapted = {
        one.path for one, is_adapted in zip(model.trainable_variables, optimizer._adapted, strict=True) if is_adapted
    }
    assert adapted == {one.path for one in model.trainable_variables if one.name == "kernel"}
    assert len(adapted) == 5


@ANY
@given(
    training=trainings(),
    rate=st.sampled_from([1e-3, 0.01, 0.1]),
    beta_1=st.sampled_from([0.0, 0.5, 0.9]),
    beta_2=st.sampled_from([0.9, 0.999]),
    decay=st.sampled_from([None, 0.01, 0.3]),
)
def test_keras_lamb_is_that_of_its_paper_with_the_decay_decoupled(
    training: Any, rate: float, beta_1: float, beta_2: float, decay: float | None
) -> None:
    weights, gradients = training
    optimizer = keras.optimizers.Lamb(rate, beta_1=beta_1, beta_2=beta_2, weight_decay=decay)
    ours = applied(optimizer, weights, gradients, (rate,))
    # 1 - beta_2 is a thousandth, of which float32 knows four digits
    assert_close(ours, lamb(weights, gradients, rate, beta_1, beta_2, decay or 0.0), weights, 2e-4)


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
        (lambda: LARS(exclude="bias"), ConfigTypeError),
        (lambda: LARS(exclude=["bias", None]), ConfigTypeError),
        (lambda: LARS(exclude=["("]), ConfigError),
        (lambda: LARS().exclude_from_weight_decay(var_names=["bias"]), UnsupportedError),
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
