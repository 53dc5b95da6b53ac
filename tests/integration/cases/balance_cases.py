"""Cases of shares that follow the speed of workers: each runs in every worker at once and returns JSON values."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import BalanceShares

STRATEGY = tfdist.strategies.from_environment()
RANK = int(os.environ["TFDIST_WORKER_INDEX"])
EXAMPLES, BATCH, EPOCHS = 90, 16, 4
X = np.random.RandomState(0).normal(size=(EXAMPLES, 4)).astype(np.float32)
Y = np.tanh(X.sum(axis=1, keepdims=True))
traced = 0


class Told(BalanceShares):
    """Is told how long this worker has computed, in place of a clock: by its rows, a row takes worker 1 four times."""

    waits = 0.0

    def _measured(self) -> tuple[float, float]:
        really, _ = super()._measured()
        assert really > 0, "the stamps of the steps are there"
        assert self._rows is not None
        return self._rows[RANK] * (1e-3, 4e-3)[RANK], self.waits * RANK


class Counts(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        global traced
        traced += 1
        return inputs


def model(scope: Any, *, at_once: int = 1, synchronized: bool = False) -> keras.Model:
    keras.utils.set_random_seed(3)
    with scope:
        layers = [keras.layers.BatchNormalization(synchronized=True)] if synchronized else []
        dense = [keras.layers.Dense(6, activation="tanh"), *layers, keras.layers.Dense(1)]
        network = keras.Sequential([keras.Input((4,)), Counts(), *dense])
        network.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], steps_per_execution=at_once)
    return network


def data(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "arrays":
        return {"x": X, "y": Y, "batch_size": BATCH}
    if kind == "dataset":
        return {"x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES, seed=5).batch(BATCH)}
    return {"x": tfdist.data.read(folder, global_batch_size=BATCH, label="y", inputs="x")}


def shares_follow(kind: str, at_once: int) -> Any:
    """Train while shares change; how far weights and losses are from one device, the changes, and new traces."""
    global traced
    with tempfile.TemporaryDirectory() as folder:  # of each worker's own, with the same examples
        tfdist.data.write({"x": X, "y": Y}, folder, num_shards=1)
        alone = model(contextlib.nullcontext(), at_once=at_once)
        reference = alone.fit(**data(kind, Path(folder)), epochs=EPOCHS, verbose=0)
        balance = Told(every=4)
        network = model(STRATEGY.scope(), at_once=at_once)
        try:
            first = network.fit(**data(kind, Path(folder)), verbose=0)
            network = model(STRATEGY.scope(), at_once=at_once)
            still = traced
            found = network.fit(**data(kind, Path(folder)), epochs=EPOCHS, callbacks=[balance], verbose=0)
            moving, traced = traced - still, 0
            assert first.history["loss"][0] > 0
            weights = zip(network.get_weights(), alone.get_weights(), strict=True)
            gaps = [float(np.abs(mine - other).max()) for mine, other in weights]
            losses = np.abs(np.array(found.history["loss"]) - reference.history["loss"]).max()
            again = Told(every=4)
            again.set_model(network)
            STRATEGY.shares = (1, 1)
            again.on_train_begin()
            again.set_state(balance.get_state())
            again.on_train_end()
            restored = STRATEGY.shares
        finally:
            STRATEGY.shares = (1, 1)
    return {"gap": max(*gaps, float(losses)), "changes": balance.changes, "traces": moving, "restored": restored}


def shares_stay() -> Any:
    """Return warnings, changes and final shares: a slow input, layers that wait for others, a batch of one row."""
    seen = []
    slow, balance = Told(every=2), BalanceShares(every=2)
    slow.waits = 1.0
    for callback, synchronized, batch in ((slow, False, BATCH), (balance, True, BATCH), (BalanceShares(), False, 1)):
        network = model(STRATEGY.scope(), synchronized=synchronized)
        steps = 2 if batch == 1 else None
        network.fit(X, Y, batch_size=batch, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[callback])
        seen.append([sorted(callback._told), callback.changes, STRATEGY.shares])
    return seen
