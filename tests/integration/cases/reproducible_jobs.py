"""Small jobs, each forked from this process, which has imported TensorFlow; prints what each came to as JSON.

python reproducible_jobs.py FOLDER
"""

import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
import tfdist.reproducibility
import tfdist.strategies.factory
from tfdist.cluster.ports import free_ports
from tfdist.errors import ConfigError
from tfdist.testing.pool import worker_environments

DEADLINE_SECONDS = 600  # for a machine that does other things
# name -> (strategy, workers, replicas of each, seed, whether workers are late, each at other times)
JOBS = {
    "mirrored": ("mirrored", 1, 3, 7, False),
    "mirrored again": ("mirrored", 1, 3, 7, True),
    "mirrored, another seed": ("mirrored", 1, 3, 8, False),
    "multi-worker": ("multi-worker", 2, 1, 7, False),
    "multi-worker again": ("multi-worker", 2, 1, 7, True),
    "ring": ("ring", 3, 1, 7, False),
    "ring again": ("ring", 3, 1, 7, True),
}
# what comes before tfdist.reproducible, and is an error
BEFORE: dict[str, Callable[[], object]] = {
    "a layer": lambda: keras.layers.Dense(1),
    "a tensor": lambda: tf.ones([]),
    "tuning": lambda: os.environ.update(HOROVOD_AUTOTUNE="1"),
}


class Late(keras.callbacks.Callback):
    """Keeps a worker busy before a batch, now this one and now that one."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.worker = worker

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if (batch + self.worker) % 3 == 0:
            np.linalg.svd(np.ones((200, 200)))


def train(seed: int, late: bool) -> str:
    """Train a model that draws random numbers everywhere; return a digest of all results."""
    tfdist.reproducible(seed)
    strategy = tfdist.strategies.from_environment()
    x = np.random.normal(size=(45, 20)).astype("float32")
    with strategy.scope():
        layers = [keras.layers.Dense(300, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([keras.Input((20,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    callbacks = [Late(int(os.environ.get("TFDIST_WORKER_INDEX", 0)))] if late else []
    history = model.fit(x, x[:, :1] ** 2, batch_size=10, epochs=2, shuffle=True, verbose=0, callbacks=callbacks)
    values = [np.asarray(value) for value in [*model.get_weights(), history.history["loss"]]]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


def refused(before: str) -> str:
    BEFORE[before]()
    try:
        tfdist.reproducible(7)
    except ConfigError as error:
        return str(error)
    return "not refused"


def fork(result: Path, environment: dict[str, str], function: Callable[..., str], *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(DEADLINE_SECONDS)
            os.environ.clear()
            os.environ.update(environment)
            result.write_text(function(*arguments))
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, it is printed, and the fork ends here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def main(folder: Path) -> None:
    found = {}
    for name, (strategy, workers, replicas, seed, late) in JOBS.items():
        ports = free_ports(workers)
        places = worker_environments(os.environ, strategy=strategy, ports=ports, replicas_per_worker=replicas)
        files = [folder / f"{name} {index}" for index in range(workers)]
        pids = [fork(file, place, train, seed, late) for file, place in zip(files, places, strict=True)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        found[name] = [file.read_text() if file.exists() else "" for file in files] if not any(codes) else codes
    for name in BEFORE:
        os.waitpid(fork(folder / name, dict(os.environ), refused, name), 0)
        found[name] = [(folder / name).read_text()]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
