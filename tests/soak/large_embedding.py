"""A table of 4 GB over four processes: the peak memory of each when the table is made and when it is trained.

    python -m tests.soak.large_embedding [--gigabytes 4] [--processes 4]

The table has a row for each word. Each process makes its part of the rows, by the first process's seed. Memory is
resident and unshared, minus the memory before the table was made, after a table of a few words was trained. A process
that held the whole table for a moment would show it.
"""

import argparse
import gc
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdist.cluster import ports
from tfdist.strategies import ModelParallelStrategy
from tfdist.testing.pool import WorkerPool, worker_environments

DEADLINE_SECONDS = 240
WIDTH, WORDS, EXAMPLES, FEW = 256, 16, 32, 64
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes, without what is shared."""
    lines = dict(line.split(":") for line in _STATUS.read_text(encoding="ascii").splitlines())
    return (int(lines[name].split()[0]) - int(lines["RssShmem"].split()[0])) << 10


def network(strategy: ModelParallelStrategy, rows: int) -> keras.Model:
    """Return a table with a layer behind it."""
    with strategy.scope():
        words = keras.layers.Embedding(rows, WIDTH)
        layers = [keras.Input((WORDS,), dtype="int32"), words, keras.layers.GlobalAveragePooling1D()]
        made = keras.Sequential([*layers, keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def train(model: keras.Model, rows: int) -> None:
    """Train two epochs of two steps, with words from the whole table."""
    x = np.random.default_rng(1).integers(0, rows, (2 * EXAMPLES, WORDS)).astype(np.int32)
    model.fit(x, np.ones((len(x), 1), np.float32), batch_size=EXAMPLES, epochs=2, verbose=0)


def peaks(rows: int, processes: int) -> dict[str, Any]:
    """Return the memory of this process beside its part of the table, in bytes."""
    mesh = f"batch=1,model={processes}"
    strategy = ModelParallelStrategy(mesh=mesh, layout_map={".*embeddings": ("model", None)})
    train(network(strategy, FEW), FEW)
    gc.collect()
    _CLEAR.write_text("5", encoding="ascii")  # the peak begins anew
    before = memory("VmRSS")
    model = network(strategy, rows)
    made = memory("VmHWM") - before
    train(model, rows)
    return {"before": before, "part": rows * WIDTH * 4 // processes, "made": made, "trained": memory("VmHWM") - before}


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    rows = round(options.gigabytes * 1e9 / (4 * WIDTH * options.processes)) * options.processes

    def environments() -> list[dict[str, str]]:
        free = ports.free_ports(options.processes)
        return worker_environments(os.environ, strategy="model-parallel", ports=free, replicas_per_worker=1)

    with WorkerPool(environments) as workers:
        arguments = {"rows": rows, "processes": options.processes}
        replies = workers.call("tests.soak.large_embedding:peaks", arguments, timeout_seconds=DEADLINE_SECONDS)
    print("| process | before, MB | its part, MB | above before, made, MB | above before, trained, MB |")
    print("|---|---|---|---|---|")
    for reply in replies:
        if reply.status != "returned":
            raise SystemExit(f"process {reply.worker}: {reply.message}\n{reply.detail}")
        print(f"| {reply.worker} | {' | '.join(f'{value / 1e6:.0f}' for value in reply.value.values())} |")


if __name__ == "__main__":
    main()
