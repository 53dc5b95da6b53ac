"""The worker processes of this benchmark: a wide network with Adam, whose slots are most of the memory.

Adam has a global norm, so all gradients exist at once, as the formula assumes.
"""

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies
from tfdist.bench.workers import slow_network
from tfdist.bench.workers.training_loops import Clock
from tfdist.collectives import buckets
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_prepared: dict[str, Any] = {}


def prepare(strategy: str, units: int, layers: int, batch_size: int, steps: int, bucket_part: float = 1.0) -> None:
    """Train a network for some steps."""
    chosen = tfdist.strategies.create(strategy, bucket_bytes=max(1, round(bucket_part * buckets.DEFAULT_BYTES)))
    wide = network(chosen, units, layers)
    fit(chosen, wide, units, batch_size, steps)
    _prepared.update(strategy=chosen, network=wide, units=units, batch_size=batch_size)


def measure(steps: int) -> dict[str, Any]:
    """Return the seconds of the given number of steps, the sent bytes, and the largest memory of the process.

    Bytes are without headers of packets. Memory is without shared memory, through which collectives travel, and which
    is there from the first step on.
    """
    found, wide = _prepared, _prepared["network"]
    gc.collect()
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")  # resets the peak
    before = slow_network.sent()
    seconds = fit(found["strategy"], wide, found["units"], found["batch_size"], steps)
    sent = slow_network.since(before)
    slots = [tf_strategies.primary(one.value) for one in wide.optimizer.variables]
    return {
        "seconds": seconds,
        "sent_bytes": None if sent is None else sent.payload,
        "peak_bytes": _memory("VmHWM") - _memory("RssShmem"),
        "slots_bytes": sum(one.shape.num_elements() * one.dtype.size for one in slots),
        "parameters": wide.count_params(),
    }


def network(strategy: Any, units: int, layers: int) -> keras.Model:
    """Return a perceptron, compiled."""
    with strategy.scope():
        dense = [keras.layers.Dense(units, activation="relu") for _ in range(layers)]
        made = keras.Sequential([keras.Input((units,)), *dense])
        made.compile(keras.optimizers.Adam(1e-4, global_clipnorm=1.0), "mse")
    return made


def fit(strategy: Any, made: keras.Model, units: int, batch_size: int, steps: int) -> float:
    """Return the seconds of one epoch of this many steps, all on the same batch."""
    x = np.random.default_rng(7).normal(size=(batch_size, units)).astype(np.float32)
    batches = tf.data.Dataset.from_tensors((x, x)).repeat()
    clock = Clock()
    made.fit(batches, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return clock.seconds


def _memory(name: str) -> int:
    """Return a figure of this process's memory in bytes; 0 if the kernel has none."""
    if not _STATUS.exists():
        return 0
    line = next(one for one in _STATUS.read_text(encoding="ascii").splitlines() if one.startswith(name))
    return int(line.split()[1]) << 10
