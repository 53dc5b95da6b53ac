"""The chief of the benchmark of a large table in parts: lookups by `predict`, and training steps by `fit`."""

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.servers.table_lookups import draw, resident
from tfdist.bench.workers.training_loops import Clock
from tfdist.errors import TfdistError
from tfdist.strategies import ParameterServerStrategy
from tfdist.training.parameter_servers import variable_placement

_built: dict[str, Any] = {}


def start(workers: int, servers: int) -> None:
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(servers)
    _built["strategy"] = ParameterServerStrategy(
        local_workers=workers, local_servers=servers, variable_partitioner=partitioner
    )


def create(rows: int, dim: int) -> float:
    """Make the table; return the seconds until its first and its last row could be read."""
    with _built["strategy"].scope():
        began = time.perf_counter()
        table = keras.layers.Embedding(rows, dim, name="table")
        table.build(())
        np.asarray(table(np.array([0, rows - 1], np.int32)))
        seconds = time.perf_counter() - began
    _built["table"], _built["rows"] = table, rows
    return seconds


def memory() -> list[dict[str, int]]:
    """Return for each server the bytes of variables that were placed on it, and its memory; see `ServerMemory`."""
    strategy = _built["strategy"]
    placed = variable_placement.loads(strategy.placement(), strategy.num_servers)
    found = []
    for server in range(strategy.num_servers):
        status = Path(f"/proc/{strategy._tasks.pid('ps', server)}/status")
        now, most = resident(status.read_text(encoding="utf-8"))
        found.append({"placed": placed[server], "resident": now, "most": most})
    return found


def prepare(what: str, batch_size: int, steps: int) -> None:
    """Build the model that looks up ("lookups") or trains with an optimizer ("sgd", "adagrad"), and run it once."""
    with _built["strategy"].scope():
        ids = keras.Input((), dtype="int32")
        vectors = _built["table"](ids)
        if what == "lookups":
            _built[what] = keras.Model(ids, vectors)
        else:
            _built[what] = keras.Model(ids, keras.ops.mean(vectors, axis=-1))
            _built[what].compile(optimizer=_OPTIMIZERS[what](0.01), loss="mse")
    measure(what, "uniform", batch_size, steps)


def measure(what: str, ids: str, batch_size: int, steps: int) -> float:
    """Return the seconds of the given number of batches."""
    drawn = draw(ids, batch_size * steps, _built["rows"])
    if what == "lookups":
        began = time.perf_counter()
        rows = _built[what].predict(drawn, batch_size=batch_size, verbose=0)
        seconds = time.perf_counter() - began
        assert len(rows) == len(drawn)
    else:
        clock = Clock()
        wanted = np.zeros(len(drawn), np.float32)
        _built[what].fit(drawn, wanted, batch_size=batch_size, shuffle=False, verbose=0, callbacks=[clock])
        seconds = clock.seconds
    if _built["strategy"].lost_workers:
        raise TfdistError(f"{what}: a worker was lost; what was measured counts for nothing.")
    return seconds


def end() -> None:
    _built["strategy"].close()


_OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad}
