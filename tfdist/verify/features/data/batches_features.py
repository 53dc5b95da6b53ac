"""Batch sizes: full, partial, smaller than the number of replicas, and varying."""

from typing import Any

from tfdist.verify.context import Context
from tfdist.verify.feature import Outcome, feature
from tfdist.verify.feature_tasks import compiled, regression, trained


def _fit(ctx: Context, rows: int, *, batch_size: int = 8, **compile_options: Any) -> Outcome:
    model = compiled(ctx, metrics=["mae"], **compile_options)
    x, y = regression(rows)
    outcome = trained(ctx, model, x, y, batch_size=batch_size)
    evaluated = model.evaluate(x, y, batch_size=batch_size, verbose=0)
    return {**outcome, "evaluate": evaluated, "predict": model.predict(x, batch_size=batch_size, verbose=0)}


@feature()
def even(ctx: Context) -> Outcome:
    """Batches that divide evenly: 36 examples in batches of 12."""
    return _fit(ctx, 36, batch_size=12)


@feature()
def partial_batch(ctx: Context) -> Outcome:
    """A last batch with one example: 33 in batches of 8."""
    return _fit(ctx, 33)


@feature()
def partial_batch_five(ctx: Context) -> Outcome:
    """A last batch with five of eight examples: 37 in batches of 8."""
    return _fit(ctx, 37)


@feature()
def empty_replicas(ctx: Context) -> Outcome:
    """A last batch with two examples: some replicas are empty when there are more."""
    return _fit(ctx, 26)


@feature()
def odd_batches(ctx: Context) -> Outcome:
    """Batches that no number of replicas divides: 35 examples in batches of 7."""
    return _fit(ctx, 35, batch_size=7)


@feature()
def batches_of_one(ctx: Context) -> Outcome:
    """Batches of one example: all replicas but one are always empty."""
    return _fit(ctx, 6, batch_size=1)


@feature()
def first_batch_five(ctx: Context) -> Outcome:
    """The first batch is uneven: five examples in all."""
    return _fit(ctx, 5)


@feature()
def first_batch_one(ctx: Context) -> Outcome:
    """The first batch has one example, the only one."""
    return _fit(ctx, 1)
