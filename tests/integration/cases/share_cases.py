"""Cases of uneven shares: each runs in a worker process with two logical CPUs and returns JSON values."""

from typing import Any

import keras
import numpy as np
import refusal_fields
import tensorflow as tf
from hearing import heard

import tfdist.strategies
from tfdist import errors

STRATEGY = tfdist.strategies.from_environment()
ROWS = np.arange(8, dtype=np.float32)


def rows_of_a_loop_of_ones_own() -> Any:
    """The rows of a batch of 8 that each replica of a custom loop has, with shares (3, 1)."""
    STRATEGY.shares = (3, 1)
    try:
        batches = STRATEGY.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(ROWS).batch(8))
        (batch,) = list(batches)
        return [part.numpy().tolist() for part in STRATEGY.experimental_local_results(batch)]
    finally:
        STRATEGY.shares = (1, 1)


def too_few_rows() -> Any:
    """The refusals of a batch without a row for each replica, and of another number of weights; equal shares train."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    STRATEGY.shares = (3, 1)
    try:
        rows = ROWS[:, None]
        fitting = refusal_fields.met(lambda: model.fit(rows, rows, batch_size=1, verbose=0), errors.ConfigError)
        model.evaluate(rows, rows, batch_size=1, verbose=0)
        setting = refusal_fields.met(lambda: setattr(STRATEGY, "shares", (1, 2, 3)), errors.ConfigError)
    finally:
        STRATEGY.shares = (1, 1)
    with heard() as said:
        model.fit(rows[:2], rows[:2], batch_size=1, verbose=0)
        model.fit(rows[:2], rows[:2], batch_size=2, verbose=0)
    return {"fit": fitting, "set": setting, "equal": said}
