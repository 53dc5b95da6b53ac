"""The places where the clients of a simulation train: this process, or a pool with a model in each process."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tfdist.errors import ConfigError
from tfdist.federated.client_update import Arrays, Update
from tfdist.federated.clients.client_data import ClientData, data_of
from tfdist.federated.clients.local_training import LocalTrainer, TrainTask
from tfdist.federated.robust.lying_clients import Liars, Lie, taught
from tfdist.processes.pool.task_pool import TaskPool
from tfdist.waiting import awaited

if TYPE_CHECKING:
    from tfdist.federated.app import App

_AHEAD = 2  # trainings that a process has at a time, so that it waits for nothing between two
Trained = tuple[Update, Arrays]  # and the new state of the client
Evaluated = tuple[int, dict[str, float]]


class ClientWork(Protocol):
    """Trainings and evaluations of clients: begun in advance, and requested in an order that affects nothing else.

    `ahead` is the number of them that may be begun before they are requested.
    """

    ahead: int

    def train(self, task: TrainTask, state: Arrays) -> "Future[Trained]":
        """Begin a training of a client with this state."""

    def evaluate(self, client: str, weights: Arrays, state: Arrays) -> "Future[Evaluated]":
        """Begin an evaluation on the data of a client."""

    def close(self) -> None:
        """End the work that is under way."""


class WorkHere:
    """Work in this process, which is done at once."""

    ahead = 1

    def __init__(self, trainer: LocalTrainer, parts: "SimulatedClients") -> None:
        self._worker = _Worker(trainer, parts)

    def train(self, task: TrainTask, state: Arrays) -> "Future[Trained]":
        return _done(self._worker.train(task, state))

    def evaluate(self, client: str, weights: Arrays, state: Arrays) -> "Future[Evaluated]":
        return _done(self._worker.evaluate(client, weights, state))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class SimulatedClients:
    """The data of clients, and the clients that lie."""

    data: ClientData
    liars: Liars | None
    lying: frozenset[str]


class WorkInPool:
    """Work in processes that get the application once, and the weights of a round once.

    Personal layers of a client that has no state yet get the values of the model here: another process makes others.
    """

    def __init__(self, app: "App", clients: SimulatedClients, processes: int, personal: Arrays) -> None:
        self.ahead = _AHEAD * processes
        self._personal = personal
        self._pools = [TaskPool(1, cure="fewer processes (--processes)") for _ in range(processes)]
        self._begun = [list[Future[Any]]() for _ in range(processes)]
        self._sent = list[Arrays | None]([None] * processes)
        parts = (app.make_model, app.algorithm, tuple(app.personal_layers), app.compression, clients)
        try:
            for pool, begun in zip(self._pools, self._begun, strict=True):
                begun.append(pool.submit(_begin, *parts))
        except Exception as error:  # of pickling, any
            self.close()
            raise ConfigError(
                f"the application cannot be sent to other processes: {error}. Give datasets and open files by a "
                "function of the client's name, or leave out processes (--processes).",
                name="processes",
                received=processes,
            ) from error
        try:
            for begun in self._begun:
                awaited(begun[0]).result()
        except BaseException:
            self.close()
            raise

    def train(self, task: TrainTask, state: Arrays) -> "Future[Trained]":
        light = replace(task, arrays={})  # they are sent once a round
        return self._submit(task.arrays, _train, light, {**self._personal, **state})

    def evaluate(self, client: str, weights: Arrays, state: Arrays) -> "Future[Evaluated]":
        return self._submit(weights, _evaluate, client, {**self._personal, **state})

    def close(self) -> None:
        for pool in self._pools:
            pool.close(at_once=True)

    def _submit(self, arrays: Arrays, function: Any, *arguments: Any) -> "Future[Any]":
        self._begun = [[one for one in begun if not one.done()] for begun in self._begun]
        place = min(range(len(self._pools)), key=lambda place: len(self._begun[place]))
        if not _are_same(self._sent[place], arrays):
            self._pools[place].submit(_take_weights, dict(arrays))
            self._sent[place] = arrays
        future = self._pools[place].submit(function, *arguments)
        self._begun[place].append(future)
        return future


def _are_same(one: Arrays | None, other: Arrays) -> bool:
    return one is not None and one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def _done(result: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class _Worker:
    """The training and evaluation of clients, here or in a process of the pool."""

    def __init__(self, trainer: LocalTrainer, clients: SimulatedClients) -> None:
        self._trainer, self._clients = trainer, clients
        self.weights: Arrays = {}

    def train(self, task: TrainTask, state: Arrays) -> Trained:
        clients, data = self._clients, data_of(self._clients.data, task.client)
        is_liar = task.client in clients.lying
        if clients.liars is not None and is_liar:
            data = taught(clients.liars, data, getattr(self._trainer.model, "output_shape", None))
        update, new = self._trainer.train(task, data, state)
        codec, kind = self._trainer.codec, Lie if is_liar else Update
        sent, kept = codec.encode(update.arrays, state)
        return kind(codec.decode(sent), update.examples, update.metrics), {**new, **kept}

    def evaluate(self, client: str, weights: Arrays, state: Arrays) -> Evaluated:
        return self._trainer.evaluate(weights, data_of(self._clients.data, client), state)


# --- in a process of the pool -----------------------------------------------------------------------------------------
_worker: list[_Worker] = []  # the one of this process


def _begin(
    make_model: Any, algorithm: Any, personal: Sequence[str], compression: Any, clients: SimulatedClients
) -> None:
    _worker[:] = [_Worker(LocalTrainer(make_model, algorithm, personal, compression), clients)]


def _take_weights(arrays: Arrays) -> None:
    _worker[0].weights = arrays


def _train(task: TrainTask, state: Arrays) -> Trained:
    return _worker[0].train(replace(task, arrays=_worker[0].weights), state)


def _evaluate(client: str, state: Arrays) -> Evaluated:
    return _worker[0].evaluate(client, _worker[0].weights, state)
