"""Saving and loading inside the scope."""

from typing import Any

from tfdist.verify.feature import Context, Outcome, feature, keras
from tfdist.verify.feature_tasks import BATCH, EVEN, compiled, dense, prefixed, regression, sgd, state, trained


def _model(ctx: Context) -> Any:
    with ctx.scope():
        model = dense(keras.layers.BatchNormalization(synchronized=True, momentum=0.5))
        model.compile(sgd(use_ema=True), "mse", metrics=["mae"])
    return model


@feature()
def save_and_load(ctx: Context) -> Outcome:
    """model.save on every worker, load_model in the scope, then more training."""
    model = _model(ctx)
    x, y = regression(EVEN)
    outcome = trained(ctx, model, x, y)
    path = ctx.directory / "model.keras"
    model.save(path)
    ctx.barrier("saved")
    with ctx.scope():
        loaded = keras.models.load_model(path)
    outcome = {**outcome, "evaluate": loaded.evaluate(x, y, batch_size=BATCH, verbose=0)}
    return {**outcome, **prefixed("loaded", trained(ctx, loaded, x, y))}


@feature()
def save_and_load_weights(ctx: Context) -> Outcome:
    """save_weights and load_weights into a model that has other weights, then more training."""
    model = _model(ctx)
    x, y = regression(EVEN)
    trained(ctx, model, x, y)
    path = ctx.directory / "model.weights.h5"
    model.save_weights(path)
    ctx.barrier("saved")
    keras.utils.set_random_seed(98)
    other = _model(ctx)
    other.load_weights(path)
    return trained(ctx, other, x, y)


@feature()
def load_outside_and_copy(ctx: Context) -> Outcome:
    """A model from a file, loaded without a scope, whose weights a model in the scope takes over."""
    path = ctx.directory / "model.keras"
    plain = dense()
    plain.compile(sgd(), "mse")
    if ctx.is_chief:
        plain.save(path)
    ctx.barrier("saved")
    model = compiled(ctx)
    model.set_weights(keras.models.load_model(path).get_weights())
    return {**trained(ctx, model, *regression(EVEN)), **state(ctx, model)}
