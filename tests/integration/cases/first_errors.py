"""Requests that cannot be, made as a new user makes them; prints what each was told, as JSON."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tfdist
from tfdist.cluster import Cluster


def main(folder: str) -> None:
    """Make them all; what needs a TensorFlow that has not started, in a fork before it does."""
    (Path(folder) / "empty").mkdir()
    (Path(folder) / "file").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1")
        cluster = Cluster(num_workers=2, worker_index=0, addresses=addresses)
        strategies, read = tfdist.strategies, tfdist.data.read
        requests: dict[str, Callable[[], object]] = {
            "no such strategy": lambda: strategies.create("mirorred"),
            "no such option": lambda: strategies.create("mirrored", gpus=2),
            "no GPU": lambda: strategies.MirroredStrategy(devices=["GPU:0", "GPU:1"]),
            "too few devices": lambda: strategies.MultiWorkerMirroredStrategy(replicas_per_worker=2),
            "batch of none": lambda: read(folder, global_batch_size=0),
            "batch of text": lambda: read(folder, global_batch_size="64"),
            "no data": lambda: read(f"{folder}/nothing", global_batch_size=8),
            "empty data": lambda: read(f"{folder}/empty", global_batch_size=8),
            "a file for data": lambda: read(f"{folder}/file", global_batch_size=8),
            "TF_CONFIG cut short": lambda: strategies.from_environment({"TF_CONFIG": '{"cluster": '}),
            "replicas in words": lambda: strategies.from_environment({"TFDIST_REPLICAS_PER_WORKER": "two"}),
            "workers and no index": lambda: strategies.from_environment({"TFDIST_WORKERS": "a:1,b:2"}),
            "port taken, ring": lambda: strategies.RingStrategy(cluster),
            "no Horovod": lambda: _without("horovod", lambda: strategies.RingStrategy(Cluster())),
            "TensorFlow before the strategy": lambda: _after_a_tensor(cluster),
            "fit in batches of text": lambda: _model().fit([[1.0]], [[1.0]], batch_size="16"),
            "batches of none": lambda: _model().evaluate([[1.0]], [[1.0]], 0),
        }
        told = {"port taken, multi-worker": _told_in_a_fork(lambda: strategies.MultiWorkerMirroredStrategy(cluster))}
        told |= {name: _told(request) for name, request in requests.items()}
        print(json.dumps(told))


def _told(request: Callable[[], object]) -> tuple[bool, str, str]:
    try:
        request()
    except Exception as error:  # noqa: BLE001 - which it is, is what the test asks
        return isinstance(error, tfdist.errors.TfdistError), type(error).__name__, str(error)
    return False, "", "nothing: it went through"


def _told_in_a_fork(request: Callable[[], object]) -> tuple[bool, str, str]:
    import tfdist.strategies.multi_worker_mirrored  # noqa: F401 - imported once, for the fork and for what follows

    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps(_told(request)).encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    ours, kind, said = json.loads(text)
    return ours, kind, said


def _after_a_tensor(cluster: Cluster) -> object:
    import tensorflow as tf

    tf.constant(1)
    return tfdist.strategies.MultiWorkerMirroredStrategy(cluster)


def _model() -> Any:
    import keras

    with tfdist.strategies.MirroredStrategy(devices=["CPU:0"]).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def _without(package: str, request: Callable[[], object]) -> object:
    """Make a request where a package is not installed."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        return request()
    finally:
        del sys.modules[package]
        sys.modules.update(hidden)


if __name__ == "__main__":
    main(sys.argv[1])
