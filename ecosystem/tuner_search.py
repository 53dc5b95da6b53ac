"""A search of keras-tuner, whose trials train under the strategy."""

from typing import Any

import numpy as np

from ecosystem.entry import BATCH, ROWS
from tfdist.verify.feature import Context, Outcome, keras
from tfdist.verify.feature_tasks import regression, variables


def _build(values: Any) -> Any:
    layers = keras.layers
    hidden = layers.Dense(values.Int("units", 4, 8, step=4), activation="tanh")
    model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(values.Choice("learning_rate", [0.1, 0.02])), "mse")
    return model


def search(ctx: Context) -> Outcome:
    """Two trials, their scores in order, and the weights of the best model."""
    import keras_tuner

    x, y = regression(ROWS)
    tuner = keras_tuner.RandomSearch(
        _build,
        objective="val_loss",
        max_trials=2,
        seed=3,
        directory=str(ctx.directory),  # of all workers: one of them writes
        project_name="search",
        distribution_strategy=ctx.strategy,
    )
    ctx.barrier("tuner")  # a worker that comes later would take up the search of the first
    tuner.search(x, y, validation_data=(x, y), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    trials = tuner.oracle.get_best_trials(2)
    (best,) = tuner.get_best_models(1)
    return {
        "scores": np.array([trial.score for trial in trials]),
        "values": [str(sorted(trial.hyperparameters.values.items())) for trial in trials],
        **variables(ctx, best.weights, "weights"),
    }
