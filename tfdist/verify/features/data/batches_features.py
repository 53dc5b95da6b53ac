"""Batch sizes: full, partial, smaller than the number of replicas, and varying."""

from tfdist.verify.feature import Context, Function, Outcome
from tfdist.verify.feature_tasks import compiled, regression, row, trained


def _fit(rows: int, *, batch_size: int = 8) -> Function:
    def train(ctx: Context) -> Outcome:
        model = compiled(ctx, metrics=["mae"])
        x, y = regression(rows)
        outcome = trained(ctx, model, x, y, batch_size=batch_size)
        evaluated = model.evaluate(x, y, batch_size=batch_size, verbose=0)
        return {**outcome, "evaluate": evaluated, "predict": model.predict(x, batch_size=batch_size, verbose=0)}

    return train


row("even", "Batches that divide evenly: 36 examples in batches of 12", _fit(36, batch_size=12))
row("partial_batch", "A last batch with one example: 33 in batches of 8", _fit(33))
row("partial_batch_five", "A last batch with five of eight examples: 37 in batches of 8", _fit(37))
row("empty_replicas", "A last batch with two examples: some replicas are empty when there are more", _fit(26))
row("odd_batches", "Batches that no number of replicas divides: 35 examples in batches of 7", _fit(35, batch_size=7))
row("batches_of_one", "Batches of one example: all replicas but one are always empty", _fit(6, batch_size=1))
row("first_batch_five", "The first batch is uneven: five examples in all", _fit(5))
row("first_batch_one", "The first batch has one example, the only one", _fit(1))
