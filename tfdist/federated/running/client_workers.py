"""A client of several workers: the chief talks to the server, and the others train and evaluate along with it."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import cluster
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.federated.client_update import Arrays, Update
from tfdist.federated.clients.client_data import Local
from tfdist.federated.clients.local_training import LocalTrainer, TrainTask
from tfdist.federated.transport.array_frames import pack, unpack_whole

#: between two heartbeats of the chief to the other workers while the server asks nothing
IDLE_SECONDS = 5.0
_TASK = ("round", "attempt", "client", "seed", "arrays")


class LedTrainer:
    """The trainer of the chief, whose calls the other workers repeat with the chief's arguments.

    Guaranteed: the answers of a client with one process, within the rounding of sums, because all workers train on the
    same data in one strategy.
    """

    def __init__(self, trainer: LocalTrainer, workers: Workers) -> None:
        self._trainer, self._workers = trainer, workers
        self.local, self.codec, self.keeps_state = trainer.local, trainer.codec, trainer.keeps_state

    def train(self, task: TrainTask, data: Local, state: Arrays) -> tuple[Update, Arrays]:
        """Train on all workers."""
        told = {name: getattr(task, name) for name in _TASK}
        self._tell({"what": "train", **told, "arrays": dict(task.arrays), "state": dict(state)})
        return self._trainer.train(task, data, state)

    def evaluate(self, weights: Arrays, data: Local, state: Arrays) -> tuple[int, dict[str, float]]:
        """Evaluate on all workers."""
        self._tell({"what": "evaluate", "arrays": dict(weights), "state": dict(state)})
        return self._trainer.evaluate(weights, data, state)

    def wait(self) -> None:
        """Keep the other workers waiting, which otherwise would take the chief for lost."""
        self._tell({"what": "wait"})

    def end(self) -> None:
        """Let the other workers end."""
        self._tell({"what": "end"})

    def _tell(self, message: dict[str, Any]) -> None:
        _handed_out(self._workers, b"".join(pack(message)))


def follow(trainer: LocalTrainer, data: Local, workers: Workers) -> None:
    """Repeat the calls of the chief on another worker, until the chief ends."""
    while True:
        message = unpack_whole(_handed_out(workers, b""))
        if message["what"] == "end":
            return
        if message["what"] == "train":
            trainer.train(TrainTask(**{name: message[name] for name in _TASK}), data, message["state"])
        elif message["what"] == "evaluate":
            trainer.evaluate(message["arrays"], data, message["state"])


def workers_of(trainer: LocalTrainer) -> Workers | None:
    """Return the workers of a client whose processes share its training; None if there is one process."""
    found = cluster.from_environment()
    if found.num_workers == 1:
        return None
    strategy: Any = trainer.model.distribute_strategy
    workers = getattr(strategy, "workers", None)
    if not isinstance(workers, Workers) or workers.count != found.num_workers:
        raise ConfigError(
            f"{found.source} gives {found.num_workers} workers, and make_model creates the model in no strategy of "
            "theirs. Create it in the scope of tfdist.strategies.from_environment(), or start one process.",
            name="workers",
            received=found.num_workers,
        )
    is_cut = strategy.share.process_count != workers.count or getattr(strategy, "cuts_weights", False)
    if is_cut or services(strategy).sharding is not None:
        raise UnsupportedError(
            f"each worker of {type(strategy).__name__} has a part of the model, and a federated client sends it whole. "
            "Use MultiWorkerMirroredStrategy or RingStrategy, or all devices of one process.",
            name="make_model",
            received=type(strategy).__name__,
        )
    return workers


def _handed_out(workers: Workers, frame: bytes) -> bytes:
    """Return the chief's frame, on every worker."""
    length = int(workers.gather([len(frame)])[0, 0])
    mine = np.frombuffer(frame, np.uint8) if workers.is_chief else np.zeros(length, np.uint8)
    return bytes(workers.from_chief(tf.constant(mine)).numpy().tobytes())
