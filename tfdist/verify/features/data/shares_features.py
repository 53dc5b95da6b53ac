"""Uneven shares: replicas with unlike parts of every batch."""

import contextlib
from collections.abc import Iterator

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import compiled, regression, sgd, trained

_WEIGHTS = (3, 1, 5, 2)
_ROWS, _BATCH, _WORDS = 37, 12, 5


@contextlib.contextmanager
def _uneven(ctx: Context) -> Iterator[None]:
    if ctx.strategy is None:
        yield
        return
    before = ctx.strategy.shares
    ctx.strategy.shares = _WEIGHTS[: len(before)]
    try:
        yield
    finally:
        ctx.strategy.shares = before


@feature()
def uneven_shares(ctx: Context) -> Outcome:
    """Shares (3, 1, ...): masks, synchronized BatchNormalization, sample weights, metrics, a last batch of one."""
    with ctx.scope():
        tokens = keras.Input((_WORDS,), dtype="int32")
        states = keras.layers.SimpleRNN(4)(keras.layers.Embedding(9, 4, mask_zero=True)(tokens))
        normal = keras.layers.BatchNormalization(synchronized=True)(states)
        model = keras.Model(tokens, keras.layers.Dense(1)(normal))
        model.compile(sgd(learning_rate=0.01), "mse", metrics=["mae"], weighted_metrics=["mse"])
    random = np.random.default_rng(3)
    lengths = random.integers(1, _WORDS + 1, size=(_ROWS, 1))
    x = np.where(np.arange(_WORDS) < lengths, random.integers(1, 9, size=(_ROWS, _WORDS)), 0)
    y, weights = random.normal(size=(_ROWS, 1)).astype("float32"), random.uniform(size=_ROWS).astype("float32")
    with _uneven(ctx):
        outcome = trained(ctx, model, x, y, sample_weight=weights, batch_size=_BATCH)
        evaluated = model.evaluate(x, y, sample_weight=weights, batch_size=_BATCH, verbose=0)
        return {**outcome, "evaluate": evaluated, "predict": model.predict(x, batch_size=_BATCH, verbose=0)}


@feature()
def uneven_shares_of_readings(ctx: Context) -> Outcome:
    """Shares (3, 1, ...) of a tf.data.Dataset, of tfdist.data.read, and of fewer rows than replicas."""
    from tfdist import data

    x, y = regression(_ROWS)
    folder = ctx.directory / "examples"
    if ctx.is_chief:
        data.write({"x": x, "y": y}, folder)
    ctx.barrier("written")
    model = compiled(ctx, metrics=["mae"])
    read = data.read(folder, global_batch_size=_BATCH, label="y", inputs="x")
    with _uneven(ctx):
        outcome = trained(ctx, model, read, batch_size=None)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH)
        model.fit(batches, verbose=0)
        evaluated = model.evaluate(read, verbose=0)
        return {**outcome, "evaluate": evaluated, "one": model.predict(x[:1], verbose=0)}
