"""`DistributedOptimizer` on one device: accumulation against NumPy, the loss scale, saving, and going on."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.cases.error_feedback import ErrorFeedback
from tests.refusals import refused
from tfdist.callbacks import LossScaleLogger
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.gradients.reduction import reducer
from tfdist.optimizers import LARS, DistributedOptimizer
from tfdist.training.parameter_servers import remote_part
from tfdist.training.replica import current_step

pytestmark = pytest.mark.quick

Floats = np.ndarray
KINDS: list[dict[str, float]] = [{}, {"clipnorm": 0.3}, {"global_clipnorm": 0.3}, {"clipvalue": 0.05}]


def linear(optimizer: Any, **options: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(optimizer, "mse", **options)
    return model


def averaged(overwritten_every: int) -> Any:
    return keras.optimizers.AdamW(
        0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=overwritten_every
    )


def examples(rows: int, seed: int = 0) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 3)).astype("float32"), draw.normal(size=(rows, 2)).astype("float32")


def descended(rows: int, batch: int, k: int, epochs: int, rates: Any, clip: dict[str, float]) -> list[Floats]:
    """Gradient descent on the mean squared error of big batches, in NumPy and float64."""
    x, y = (array.astype(np.float64) for array in examples(rows))
    micro = [(x[i : i + batch], y[i : i + batch]) for i in range(0, rows, batch)] * epochs
    kernel, bias = np.ones((3, 2)), np.zeros(2)
    for update in range(len(micro) // k):
        bx, by = (np.concatenate(arrays) for arrays in zip(*micro[update * k : (update + 1) * k], strict=True))
        error = 2 * (bx @ kernel + bias - by) / by.size
        grads = [bx.T @ error, error.sum(axis=0)]
        if limit := clip.get("clipnorm"):
            grads = [g * min(1, limit / np.linalg.norm(g)) for g in grads]
        if limit := clip.get("global_clipnorm"):
            grads = [g * min(1, limit / np.sqrt(sum(np.sum(h**2) for h in grads))) for g in grads]
        if limit := clip.get("clipvalue"):
            grads = [np.clip(g, -limit, limit) for g in grads]
        kernel, bias = (w - rates(update) * g for w, g in zip((kernel, bias), grads, strict=True))
    return [kernel, bias]


def draws() -> list[tuple[int, int, int]]:
    """Rows, micro-batch and accumulation, the last micro-batch of an epoch partial in most."""
    draw = np.random.default_rng(11)
    return [(int(draw.integers(1, 40)), int(draw.integers(1, 9)), int(draw.integers(1, 5))) for _ in range(7)]


@pytest.mark.parametrize(("number", "case"), list(enumerate(draws())))
def test_accumulation_is_the_big_batch(number: int, case: tuple[int, int, int]) -> None:
    rows, batch, k = case
    clip = KINDS[number % len(KINDS)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.5, 0.2, 0.1])
    scale = (None, "dynamic", 64.0)[number % 3]
    model = linear(
        DistributedOptimizer(keras.optimizers.SGD(schedule), accumulate_steps=k, loss_scale=scale, **clip),
        steps_per_execution=1 + number % 2,
        run_eagerly=number > 2,  # saves the tracing
    )
    model.fit(*examples(rows), batch_size=batch, epochs=3, shuffle=False, verbose=0)
    expected = descended(rows, batch, k, 3, lambda update: float(schedule(update)), clip)
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    steps = 3 * -(-rows // batch)
    assert int(model.optimizer.iterations.numpy()) == steps // k
    assert k == 1 or int(model.optimizer.micro_steps.numpy()) == steps % k


INNER: list[Any] = [
    lambda **clip: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **clip),
    lambda **clip: keras.optimizers.AdamW(0.01, weight_decay=0.1, **clip),
    lambda **clip: keras.optimizers.RMSprop(0.01, **clip),
    lambda **clip: LARS(1.0, trust_coefficient=0.05, **clip),
]


@settings(max_examples=40, deadline=None, database=None)
@given(
    k=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=2), min_size=1, max_size=3),
    inner=st.sampled_from(INNER),
    clip=st.sampled_from(KINDS),
    scale=st.sampled_from([None, "dynamic", 64.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_micro_batches_are_their_big_batch(
    k: int, sizes: list[int], shapes: list[list[int]], inner: Any, clip: Any, scale: Any, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    initial = [draw.normal(size=shape).astype("float32") for shape in shapes]
    each = [[draw.normal(size=shape).astype("float32") for shape in shapes] for _ in sizes]
    small, big = ([keras.Variable(value) for value in initial] for _ in range(2))
    optimizer = DistributedOptimizer(inner(), accumulate_steps=k, loss_scale=scale, **clip)
    optimizer.build(small)
    factor = 1.0 if scale is None else float(optimizer.dynamic_scale.numpy())
    for rows, grads in zip(sizes, each, strict=True):
        with current_step.Step(rows=tf.constant(rows), global_rows=tf.constant(rows)):
            optimizer.apply([tf.constant(factor * grad) for grad in grads], small)
    reference = inner(**clip)
    for first in range(0, len(sizes) - k + 1, k):
        rows, grads = np.asarray(sizes[first : first + k], np.float64), each[first : first + k]
        means = [sum(n * g for n, g in zip(rows, same, strict=True)) / rows.sum() for same in zip(*grads, strict=True)]
        reference.apply([tf.constant(mean, tf.float32) for mean in means], big)
    for mine, theirs in zip(small, big, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == len(sizes) // k


def test_defaults_are_the_inner_optimizer() -> None:
    """Averages of weights, decay, momentum and compilation by XLA, bit for bit."""
    weights = []
    for wrap in (lambda inner: inner, DistributedOptimizer):
        inner = keras.optimizers.AdamW(
            0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
        )
        model = linear(wrap(inner))
        model.fit(*examples(20), batch_size=8, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_averages_and_decay_advance_with_updates() -> None:
    found = []
    for batch, wrap in (
        (8, lambda inner: inner),
        (2, lambda inner: DistributedOptimizer(inner, accumulate_steps=4)),
    ):
        inner = keras.optimizers.AdamW(
            0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        )
        model = linear(wrap(inner))
        model.fit(*examples(31), batch_size=batch, epochs=1, shuffle=False, verbose=0)
        found.append([*model.get_weights(), *(variable.numpy() for variable in inner.variables)])
    for big, small in zip(*found, strict=True):
        np.testing.assert_allclose(big, small, rtol=0, atol=1e-6)


def test_a_weight_gets_its_own_average_where_another_was_frozen() -> None:
    frozen, trained = keras.Variable([1.0]), keras.Variable([2.0])
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    keras_optimizer.override(optimizer)
    for _ in range(2):
        optimizer.apply([tf.ones([1])] * 2, [frozen, trained])
    optimizer.finalize_variable_values([trained])
    assert [float(weight.numpy()[0]) for weight in (frozen, trained)] == [-1.0, 0.5]


def test_a_sum_is_the_mean_times_the_examples() -> None:
    expected = linear(keras.optimizers.SGD(0.01 * 7))
    expected.fit(*examples(7), batch_size=7, verbose=0, shuffle=False)
    model = linear(DistributedOptimizer(keras.optimizers.SGD(0.01), accumulate_steps=3, reduction="sum"))
    model.fit(*examples(7), batch_size=3, verbose=0, shuffle=False)
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_bad_micro_batch_costs_its_update_and_no_other() -> None:
    x, y = examples(24)
    bad = x.copy()
    bad[5] = np.inf
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model = linear(DistributedOptimizer(keras.optimizers.SGD(schedule), accumulate_steps=2, loss_scale="dynamic"))
    history = model.fit(bad, y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[LossScaleLogger()]).history
    assert (history["loss_scale"], history["skipped_steps"]) == ([2.0**14], [1])
    assert int(model.optimizer.iterations.numpy()) == 2
    expected = linear(keras.optimizers.SGD(schedule))
    expected.fit(x[8:], y[8:], batch_size=8, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_the_logger_counts_for_keras_own_optimizer() -> None:
    x, y = examples(24)
    x[5] = x[20] = np.inf
    model = linear(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, callbacks=[LossScaleLogger()], **fit).history
    assert history["skipped_steps"] == [2, 4]
    assert history["loss_scale"] == [2.0**13, 2.0**11]


def test_a_scale_grows_and_a_number_stays() -> None:
    for scale, expected in (("dynamic", 2.0**17), (8.0, 8.0)):
        model = linear(DistributedOptimizer("sgd", loss_scale=scale, growth_steps=2))
        model.fit(*examples(20), batch_size=4, verbose=0)
        assert float(model.optimizer.dynamic_scale.numpy()) == expected
    with_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = linear(DistributedOptimizer("sgd"))
        assert type(model.optimizer) is DistributedOptimizer
        assert model.optimizer.loss_scale == "dynamic"
    finally:
        keras.config.set_dtype_policy(with_policy)


@pytest.mark.parametrize(("scale", "gradient"), [(2.0**127, 0.5), (2.0**-126, np.nan)])
def test_a_scale_stays_one_that_gradients_can_be_divided_by(scale: float, gradient: float) -> None:
    optimizer = DistributedOptimizer("sgd", loss_scale="dynamic", growth_steps=1)
    variable = keras.Variable(np.ones(2, np.float32))
    optimizer.build([variable])
    optimizer.dynamic_scale.assign(scale)
    optimizer.apply([tf.fill([2], tf.constant(gradient))], [variable])
    assert float(optimizer.dynamic_scale.numpy()) == scale


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_large_scale_is_taken_out_of_gradients_of_any_dtype(dtype: str) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), loss_scale=2.0**17)
    variable = keras.Variable(np.ones(2), dtype=dtype)
    optimizer.build([variable])
    optimizer.apply([tf.fill([2], tf.constant(2.0**15, dtype))], [variable])
    np.testing.assert_array_equal(tf.cast(variable.value, tf.float64), [0.75, 0.75])


def test_it_is_saved_with_a_model_in_the_middle_of_an_accumulation(tmp_path: Any) -> None:
    inner = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 50))
    model = linear(DistributedOptimizer(inner, accumulate_steps=3, loss_scale="dynamic", clipnorm=1.0))
    x, y = examples(16)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for one in (model, again):
        one.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_workers_of_parameter_servers_remember_nothing() -> None:
    with refused(UnsupportedError, name="error_feedback", mentions=("the error memory",)):
        remote_part.adapt_optimizer(ErrorFeedback("sgd"), tf.distribute.get_strategy())


def numpy_adasum(gradients: list[Floats]) -> Floats:
    """The recursion of Maleki et al. 2020, equation for two, over halves of a power of two."""
    if len(gradients) == 1:
        return gradients[0]
    half = len(gradients) // 2
    a, b = numpy_adasum(gradients[:half]), numpy_adasum(gradients[half:])
    dot, aa, bb = np.sum(a * b), np.sum(a * a), np.sum(b * b)
    return a * (1 - dot / (2 * aa) if aa else 1) + b * (1 - dot / (2 * bb) if bb else 1)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_adasum_is_that_of_its_paper(workers: int) -> None:
    draw = np.random.default_rng(workers)
    gradients = [draw.normal(size=(4, 3)) for _ in range(workers)]
    gradients[-1] *= draw.integers(2)  # a replica without examples has nothing
    ours = reducer.adasum([tf.constant(one) for one in gradients]).numpy()
    np.testing.assert_allclose(ours, numpy_adasum(gradients), rtol=1e-12)


def test_adasum_of_a_number_that_is_no_power_of_two() -> None:
    """Equal gradients give that gradient and orthogonal ones their sum, for any number."""
    for workers in range(1, 8):
        equal = reducer.adasum([tf.constant([3.0, -4.0])] * workers).numpy()
        np.testing.assert_allclose(equal, [3.0, -4.0], rtol=1e-6)
        apart = reducer.adasum(list(tf.eye(workers))).numpy()
        np.testing.assert_allclose(apart, np.ones(workers), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: DistributedOptimizer("sgd", accumulate_steps=0), ConfigError),
        (lambda: DistributedOptimizer("sgd", accumulate_steps=1.5), ConfigTypeError),
        (lambda: DistributedOptimizer("sgd", loss_scale="static"), ConfigTypeError),
        (lambda: DistributedOptimizer("sgd", loss_scale=0), ConfigError),
        (lambda: DistributedOptimizer("sgd", reduction="max"), ConfigError),
        (lambda: DistributedOptimizer("sgd", wire_dtype="float8"), ConfigError),
        (lambda: DistributedOptimizer("sgd", clipnorm=1.0, clipvalue=1.0), ConfigError),
        (lambda: DistributedOptimizer(keras.optimizers.SGD(clipnorm=1.0), clipvalue=1.0), ConfigError),
        (lambda: DistributedOptimizer(0.1), ConfigTypeError),
        (lambda: DistributedOptimizer(DistributedOptimizer("sgd")), ConfigError),
        (lambda: DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())), ConfigError),
        (lambda: DistributedOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=2)), ConfigError),
        (lambda: DistributedOptimizer(keras.optimizers.SGD(loss_scale_factor=2.0)), ConfigError),
        (lambda: DistributedOptimizer("sgd", not_decayed=["bias"]), ConfigError),
        (lambda: DistributedOptimizer("adamw", not_decayed="bias"), ConfigTypeError),
        (lambda: DistributedOptimizer("adamw", not_decayed=["("]), ConfigError),
        (lambda: DistributedOptimizer(LARS(), not_decayed=["bias"]), UnsupportedError),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.parametrize("after", [False, True])
def test_what_is_not_decayed_stays_so_in_a_saved_model(tmp_path: Any, after: bool) -> None:
    def decayed(optimizer: Any) -> keras.Model:
        model = linear(optimizer)
        model.set_weights([np.ones((3, 2)), np.ones(2)])
        optimizer.build(model.trainable_variables)
        return model

    optimizer = DistributedOptimizer(
        keras.optimizers.SGD(0.5, weight_decay=0.5), not_decayed=[] if after else ["bias", "gamma"]
    )
    if after:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    decayed(optimizer).save(tmp_path / "ü.keras")
    for _ in range(2):  # what is loaded is saved and loaded again
        model = keras.models.load_model(tmp_path / "ü.keras")
        model.save(tmp_path / "ü.keras")
    model.fit(np.zeros((4, 3)), np.ones((4, 2)), verbose=0)  # whose gradients are 0
    kernel, bias = model.get_weights()
    assert (bias == 1).all()
    np.testing.assert_allclose(kernel, 0.75)


def test_variables_that_are_not_decayed_are_said_to_be_lost(caplog: Any) -> None:
    model = linear(DistributedOptimizer(keras.optimizers.SGD(0.5, weight_decay=0.5)))
    model.optimizer.exclude_from_weight_decay(var_list=[model.layers[0].bias])
    assert model.optimizer.get_config()["not_decayed"] == []
    assert "pass names, not_decayed=[...], instead" in caplog.text
