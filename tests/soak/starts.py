"""The time of a job of two workers from the command to the end of its first step, over two engines in turns.

    python tests/soak/starts.py
    python tests/soak/starts.py --pairs 7 --engines native tensorflow

Each start is a `tfdist run` of its own, which keeps only the permanent caches (compiled ops, Python's own caches). One
start of each engine comes before those that count. The end of a step is that of the later worker.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfdist.bench.suite import quartiles, ratio
from tfdist.planner.machine import describe

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 300
ENGINES = ("native", "tensorflow")


def train(folder: Path) -> None:
    """Train two steps, and leave when the first one had ended."""
    import keras
    import numpy as np

    import tfdist

    class End(keras.callbacks.Callback):
        """Notes the end of the first step."""

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            if batch == 0:
                ended = time.time()
                (folder / str(tfdist.cluster.from_environment().worker_index)).write_text(repr(ended))

    with tfdist.strategies.from_environment().scope():
        model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((32, 32), np.float32)
    model.fit(x, x[:, :1], batch_size=16, epochs=1, verbose=0, callbacks=[End()])


def start(engine: str) -> float:
    """Return the seconds from the command to the end of the first step on all workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", "multi-worker"]
        command += ["--collectives", engine, str(Path(__file__).resolve()), "--train", folder]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
        kept |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
        began = time.time()
        subprocess.run(command, env=kept, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
        return max(float(Path(folder, str(worker)).read_text()) for worker in (0, 1)) - began


def main() -> None:
    """Start jobs in turns, and print medians and the ratio with quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="starts of each engine")
    parser.add_argument("--engines", nargs=2, default=ENGINES, metavar="NAME")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    about = describe()
    print(f"{about['processor']}, {about['cores']} cores, load {about['load average']}", flush=True)
    seconds: dict[str, list[float]] = {engine: [] for engine in options.engines}
    for pair in range(-1, options.pairs):
        for engine in options.engines if pair % 2 else options.engines[::-1]:
            took = start(engine)
            if pair >= 0:
                seconds[engine].append(took)
            print(f"{'warming up' if pair < 0 else f'pair {pair + 1}'}: {engine} {took:.2f} s", flush=True)
    for engine, took in seconds.items():
        print(f"{engine}: {quartiles(took)} s from the command to the end of the first step")
    first, second = options.engines
    print(
        f"{first} over {second}: {ratio(seconds[first], seconds[second])}; load {describe()['load average']} at the end"
    )


if __name__ == "__main__":
    main()
