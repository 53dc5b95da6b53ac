"""The cost of a step's trial: CPU seconds of the first step of `fit`, for two checkouts of tfdist in turns.

python -m tests.soak.first_trials --before /path/to/an/older/checkout --rounds 5

For each checkout a process has imported TensorFlow, and each case runs in a fork of it, under two replicas of one
process. For this checkout each case runs first with an empty cache, and then with the filled one.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tfdist.bench.suite import quartiles

ROOT = Path(__file__).parents[2]
SERVER = """
import os, sys, time
import numpy as np, keras, tensorflow as tf
import tfdist, tfdist.strategies

class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

class Count(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
    def call(self, x, training=False):
        if training:
            self.count.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x

def block(x):
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(4, 16)(x, x))
    return keras.layers.LayerNormalization()(x + keras.layers.Dense(32)(keras.layers.Dense(64, "gelu")(x)))

def model(name):
    x = inputs = keras.Input((10, 32))
    for _ in range(12 if name == "blocks" else 0):
        x = block(x)
    x = keras.layers.Dense(16, "relu")(x)
    if name == "state":
        x = Count()(x)
    kind = keras.Model if name in ("plain", "state") else OwnStep
    return kind(inputs, keras.layers.Dense(1)(x))

def run(name):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        made = model(name)
        made.compile("adam", "mse")
    x = np.ones((16, 10, 32), "float32")
    began = time.process_time()
    made.fit(x, x[:, :, :1], batch_size=16, verbose=0)
    return time.process_time() - began

for line in sys.stdin:
    name, cache = line.split()
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["TFDIST_CACHE_DIR"] = cache
        os.write(write, str(run(name)).encode())
        os._exit(0)
    os.close(write)
    print("seconds", os.read(read, 100).decode(), flush=True)
    os.wait()
"""


def server(checkout: Path, program: Path) -> "subprocess.Popen[str]":
    """Start the process that forks the cases of a checkout."""
    environ = {**os.environ, "PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, str(program)], env=environ, cwd="/", text=True, **streams)  # type: ignore[call-overload, no-any-return]


def seconds(process: "subprocess.Popen[str]", name: str, cache: str) -> float:
    """Return the seconds of the first step of a case."""
    given, told = process.stdin, process.stdout
    assert given is not None
    assert told is not None
    print(name, cache, file=given, flush=True)
    return float(next(line for line in told if line.startswith("seconds")).split()[1])


def main() -> None:
    """Print a row for each case: before, with an empty cache, and at the second start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=["plain", "own", "state", "blocks"])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        program = Path(folder, "server.py")
        program.write_text(SERVER)
        before, ours = (stack.enter_context(server(checkout, program)) for checkout in (options.before, ROOT))
        for name in options.cases:
            rows = []
            for number in range(options.rounds):
                cache = f"{folder}/{name}{number}"
                rows.append([seconds(one, name, cache) for one in (before, ours, ours)])
            every = [list(column) for column in zip(*rows, strict=True)]
            every += [[first - old for old, first, _ in rows], [last - old for old, _, last in rows]]
            print(f"| {name} | {' | '.join(str(quartiles(one)) for one in every)} |", flush=True)
        for process in (before, ours):
            assert process.stdin is not None
            process.stdin.close()


if __name__ == "__main__":
    main()
