"""CPU seconds from `fit` to the end of the first step, for two checkouts of tfdist and plain Keras in turns.

python -m tests.soak.first_steps --before /path/to/an/older/checkout --rounds 5
python -m tests.soak.first_steps --before /path/to/an/older/checkout --rounds 3 --cases resnet50

For each checkout, one process imports TensorFlow, and each case runs in a fork of that process. tfdist trains on two
replicas of one process, plain Keras on one device. The last column compares all weights and slots of both checkouts,
bit for bit.
"""

import argparse
import contextlib
import subprocess
import tempfile
from pathlib import Path

from tests.soak import first_trials
from tfdist.bench.suite import quartiles
from tfdist.planner.machine import describe

SERVER = """
import contextlib, hashlib, os, sys, time
import numpy as np, keras, tensorflow as tf
import tfdist, tfdist.strategies

L = keras.layers

def model(name):
    if name == "resnet50":
        return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    if name == "convolutional":
        parts = [part for _ in range(6) for part in (L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU())]
        return keras.Sequential([keras.Input((8, 8, 3)), *parts, L.Flatten(), L.Dense(10, "softmax")])
    return keras.Sequential([keras.Input((20,)), L.Dense(16, "relu"), L.Dense(16, "relu"), L.Dense(10, "softmax")])

class End(keras.callbacks.Callback):
    ended = None
    def on_train_batch_end(self, batch, logs=None):
        self.ended = self.ended or time.process_time()

def run(name, replicas):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    scope = contextlib.nullcontext()
    if replicas > 1:
        scope = tfdist.strategies.MirroredStrategy([f"CPU:{number}" for number in range(replicas)]).scope()
    keras.utils.set_random_seed(1)
    with scope:
        made = model(name)
        made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = 4 if name == "resnet50" else 16
    x = np.random.default_rng(0).normal(size=(2 * rows, *made.input_shape[1:])).astype("float32")
    end, began = End(), time.process_time()
    made.fit(x, np.arange(2 * rows) % 10, batch_size=rows, verbose=0, shuffle=False, callbacks=[end])
    digest = hashlib.sha256()
    for variable in [*made.variables, *made.optimizer.variables]:
        digest.update(np.asarray(variable.numpy()).tobytes())
    return f"{end.ended - began} {digest.hexdigest()[:8]}"

for line in sys.stdin:
    name, replicas = line.split()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, run(name, int(replicas)).encode())
        os._exit(0)
    os.close(write)
    print("answer", os.read(read, 100).decode(), flush=True)
    os.wait()
"""


def first_step(process: "subprocess.Popen[str]", name: str, replicas: int) -> tuple[float, str]:
    """Return the CPU seconds of the first step, and a digest of the values of all variables after the epoch."""
    given, told = process.stdin, process.stdout
    assert given is not None
    assert told is not None
    print(name, replicas, file=given, flush=True)
    _, seconds, digest = next(line for line in told if line.startswith("answer")).split()
    return float(seconds), digest


def main() -> None:
    """Print a row for each case: plain Keras, before, now, and the ratios of now to both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=["small", "convolutional", "resnet50"])
    options = parser.parse_args()
    print("load", describe()["load average"], flush=True)
    with contextlib.ExitStack() as stack:
        program = Path(stack.enter_context(tempfile.TemporaryDirectory()), "server.py")
        program.write_text(SERVER)
        before, ours = (
            stack.enter_context(first_trials.server(checkout, program))
            for checkout in (options.before, first_trials.ROOT)
        )
        for name in options.cases:
            sides = ((ours, 1), (before, 2), (ours, 2))
            rows = [[first_step(one, name, count) for one, count in sides] for _ in range(options.rounds)]
            plain, former, now = ([seconds for seconds, _ in column] for column in zip(*rows, strict=True))
            same = all(old == new for _, (_, old), (_, new) in rows)
            columns = [plain, former, now, [a / b for a, b in zip(now, former, strict=True)]]
            columns.append([a / b for a, b in zip(now, plain, strict=True)])
            numbers = "the same bits" if same else "OTHER NUMBERS"
            print(f"| {name} | {' | '.join(str(quartiles(one)) for one in columns)} | {numbers} |", flush=True)
        for process in (before, ours):
            assert process.stdin is not None
            process.stdin.close()
    print("load", describe()["load average"])


if __name__ == "__main__":
    main()
