"""Every entry and way as a row of a matrix, which `tfdist.verify` runs in columns and compares with one device."""

from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
from ecosystem import keras_entries, keras_hub_entries, keras_rs_entries, tuner_search
from ecosystem.entry import BATCH, ROWS, TOLERANCE, WAYS, Entry, Way
from ecosystem.shared import settled
from tfdist.verify.feature import Context, Feature, Function, Outcome, feature, keras, registered
from tfdist.verify.feature_tasks import trained

ENTRIES: tuple[Entry, ...] = (*keras_entries.ENTRIES, *keras_hub_entries.ENTRIES, *keras_rs_entries.ENTRIES)
_DATA_SEED = 11
DEADLINE_SECONDS = 900.0


def _trained(ctx: Context, entry: Entry, way: Way) -> Outcome:
    """Train on three batches, the last of them partial, and predict."""
    keras.config.set_dtype_policy(way.policy)
    with ctx.scope():
        model = settled(entry.make())
        model.compile(_optimizer(ctx, entry, way), entry.loss(), jit_compile=way.jit_compile, **entry.options())
    x, y, weights = entry.examples(np.random.default_rng(_DATA_SEED), ROWS)
    # In a tfdist scope fit has this callback by itself; it writes nothing where no loss is scaled.
    logger = tfdist.callbacks.LossScaleLogger()
    outcome = trained(ctx, model, x, y, sample_weight=weights, batch_size=BATCH, epochs=1, callbacks=[logger])
    predicted = keras.tree.flatten(model.predict(x, batch_size=BATCH, verbose=0))
    return {**outcome, **{f"prediction/{index}": np.asarray(one, "float64") for index, one in enumerate(predicted)}}


def _optimizer(ctx: Context, entry: Entry, way: Way) -> Any:
    made = entry.optimizer()
    if way.compression is None or ctx.strategy is None:
        return made
    return tfdist.optimizers.DistributedOptimizer(made, compression=way.compression)


def _training(entry: Entry, way: Way) -> Function:
    def train(ctx: Context) -> Outcome:
        keras.config.set_floatx("float64" if way.policy == "float64" else "float32")
        try:
            outcome = _trained(ctx, entry, way)
        finally:
            keras.config.set_floatx("float32")
        if way.compression is None:
            return outcome
        # an optimizer that compresses has variables that the plain one has not
        return {name: value for name, value in outcome.items() if not name.startswith("optimizer/")}

    return train


def _row(name: str, package: str, summary: str, function: Function, tolerance: float) -> Feature:
    function.__name__, function.__doc__ = name, f"{package}: {summary}"
    function.__module__ = __name__
    feature(tolerance=tolerance, may_refuse=True, deadline_seconds=DEADLINE_SECONDS)(function)
    return registered(name)


def _rows() -> dict[str, Feature]:
    found = [
        _row(
            entry.name if way == "float32" else f"{entry.name}-{way}",
            entry.package,
            entry.summary,
            _training(entry, WAYS[way]),
            WAYS[way].tolerance,
        )
        for entry in ENTRIES
        for way in entry.ways
    ]
    search = _row(
        "RandomSearch", "keras-tuner", "two trials, and the best model", lambda ctx: tuner_search.search(ctx), TOLERANCE
    )
    return {row.name: row for row in (*found, search)}


#: by name, in the order of the table; loads no TensorFlow
ROWS_OF_THE_TABLE = _rows()
