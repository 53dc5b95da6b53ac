"""The time of a job to the end of its first step: plain Keras in one process, two workers cold and warm, in turns.

    python -m tests.soak.warm_starts --rounds 7

The job trains a convolutional model on the digits, with 32 examples a step. One start of each kind comes before those
that count. The end of a step is that of the later worker. CPU seconds are those of all training processes until then;
those of a forked process begin at its fork. The agent's CPU seconds are given separately.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfdist.bench.suite import in_turns, quartiles, ratio
from tfdist.planner.machine import describe
from tfdist.variables import CACHE_DIR, NO_WARM, PREFIX

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 300
ARMS = ("plain", "cold", "warm")
SCRIPT = """
import contextlib, os, sys, time
import keras, numpy as np
folder, is_plain = sys.argv[1], sys.argv[2] == "plain"
if is_plain:
    scope, worker = contextlib.nullcontext(), "0"
else:
    import tfdist
    scope, worker = tfdist.strategies.from_environment().scope(), os.environ["TFDIST_WORKER_INDEX"]

class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            ended = time.time()
            with open(f"{folder}/{worker}", "w") as file:
                file.write(f"{ended} {time.process_time()}")

with scope:
    layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
with np.load(f"{folder}/digits.npz") as digits:
    x, y = digits["x"], digits["y"]
model.fit(x, y, batch_size=32, verbose=0, callbacks=[End()])
"""


def start(arm: str, environ: dict[str, str]) -> tuple[float, float, float]:
    """Return wall and CPU seconds to the end of the first step, and CPU seconds of the agent."""
    import numpy as np
    from sklearn.datasets import load_digits

    with tempfile.TemporaryDirectory() as folder:
        found = load_digits()
        np.savez(f"{folder}/digits.npz", x=found.images[:64, :, :, None].astype("float32") / 16, y=found.target[:64])
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        job = ["-m", "tfdist", "run", "-n", "2", "--strategy", "multi-worker"] if arm != "plain" else []
        command = [sys.executable, *job, str(script), folder, arm]
        own = {**environ, NO_WARM.name: "1"} if arm == "cold" else environ
        began = time.time()
        process = subprocess.Popen(command, env=own, cwd=folder, stderr=subprocess.PIPE)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, said
        assert ("from the warm process" in said) is (arm == "warm"), said
        told = [tuple(map(float, Path(folder, str(one)).read_text().split())) for one in (0, 1)[: 2 - (arm == "plain")]]
        agent = usage.ru_utime + usage.ru_stime if arm == "warm" else 0.0
        took = max(one[0] for one in told) - began, sum(one[1] for one in told), agent
        print(f"{arm}: {took[0]:.2f} s, {took[1]:.2f} s of the processor, load {os.getloadavg()[0]:.1f}", flush=True)
        return took


def main() -> None:
    """Start jobs in turns, and print medians and ratios with quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="starts of each")
    parser.add_argument("--cache", type=Path, help="folder with compiled ops; a new one by default")
    options = parser.parse_args()
    kept = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "TF_"))}
    with tempfile.TemporaryDirectory() as cache:
        environ = {
            **kept,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": str(ROOT),
            CACHE_DIR.name: str(options.cache or cache),
        }
        warm = [sys.executable, "-m", "tfdist", "warm"]
        try:
            subprocess.run(warm, env=environ, check=True)
            for arm in ARMS:
                print(f"warming up: {arm} {start(arm, environ)[0]:.2f} s", flush=True)
            about = describe()
            print(f"{about['processor']}, {about['cores']} cores, load {about['load average']}", flush=True)
            found = in_turns(
                ARMS,
                lambda arm, number: start(arm, environ),
                count=options.rounds,
                told=lambda text: print(text, flush=True),
            )
        finally:
            subprocess.run([*warm, "--stop"], env=environ, check=True)
    for name, place in (("wall", 0), ("processor", 1)):
        values = {arm: [one[place] for one in found[arm]] for arm in ARMS}
        for arm in ARMS:
            print(f"{name}, {arm}: {quartiles(values[arm])} s; over plain {ratio(values[arm], values['plain'])}")
        print(f"{name}, cold over warm: {ratio(values['cold'], values['warm'])}")
    print(f"agent of a warm start: {quartiles([one[2] for one in found['warm']])} s of the processor")
    print(f"load {describe()['load average']} at the end")


if __name__ == "__main__":
    main()
