"""A linear regression whose gradient noise scale is known, measured in any scope; called in a worker of a pool."""

import contextlib
import hashlib
from typing import Any

import keras
import numpy as np

import tfdist
from tfdist.callbacks import GradientNoiseScale
from tfdist.strategies import ParameterServerStrategy

EXAMPLES, BATCH, PARTS, STEPS = 40, 12, 6, 10
RNG = np.random.default_rng(3)
X = RNG.normal(size=(EXAMPLES, 5)).astype("float32")
Y = (X @ RNG.normal(size=(5, 1)) + RNG.normal(size=(EXAMPLES, 1))).astype("float32")
WEIGHTS = np.full((5, 1), 0.2, "float32")


def gradients() -> np.ndarray:
    """Return the gradient of every example's loss (x w - y)^2, in float64."""
    x, y, w = (array.astype("float64") for array in (X, Y, WEIGHTS))
    return 2 * (x @ w - y) * x


def true_noise_scale() -> float:
    """Return tr(S) / |G|^2 over the examples."""
    each = gradients()
    mean = each.mean(axis=0)
    return float(((each - mean) ** 2).sum(axis=1).mean() / (mean**2).sum())


def measured(strategy: str | None = "environment", **options: Any) -> dict[str, Any]:
    """Train without changing a weight, and measure at every step."""
    if strategy == "parameter-server":
        scope = ParameterServerStrategy(local_workers=3, local_servers=2, max_staleness=0).scope()
    else:
        scope = tfdist.strategies.from_environment().scope() if strategy else contextlib.nullcontext()
    with scope:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.set_weights([WEIGHTS])
    settings = {"batch_size": BATCH, "parts": PARTS, "every": 1, "decay": 0.9, "verbose": False, **options}
    callback = GradientNoiseScale((X, Y), **settings)
    history = model.fit(X, Y, batch_size=8, epochs=STEPS // 5, verbose=0, callbacks=[callback])
    averages = callback.averages
    return {
        "noise": averages.noise,
        "squared_gradient": averages.squared_gradient,
        "measurements": averages.measurements,
        "last": history.history["noise_scale"][-1],
    }


def trained(with_callback: bool) -> str:
    """Return a digest of all that a training with chance and moving statistics came to."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    with tfdist.strategies.from_environment().scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.4)]
        model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile("adam", "mse", metrics=["mae"])
    callbacks = [GradientNoiseScale((X, Y), batch_size=BATCH, every=2, verbose=False)] if with_callback else []
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history
    if with_callback:
        assert all(np.isfinite(scale) or scale == np.inf for scale in history.pop("noise_scale"))
    slots = [variable.numpy() for variable in model.optimizer.variables]
    values = [*model.get_weights(), *slots, *(np.asarray(one) for one in history.values())]
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest()


def compared(strategy: str = "environment") -> dict[str, Any]:
    """Measure in a scope, and without one."""
    return {"scope": measured(strategy), "alone": measured(None)}
