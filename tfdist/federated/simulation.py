"""Federated training on one machine: the rounds of a real run, with clients that cross no network."""

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import keras

from tfdist import validation
from tfdist.errors import ConfigTypeError, DeadlineError
from tfdist.federated.app import App
from tfdist.federated.client_update import Arrays
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.federated_session import FederatedSession, evaluation_of
from tfdist.federated.robust.lying_clients import Deceived, Liars, among
from tfdist.federated.round_history import RoundRecord
from tfdist.federated.rounds import round_messages as messages
from tfdist.federated.rounds.round_messages import Action, Event
from tfdist.federated.training_pool import ClientWork, SimulatedClients, WorkHere, WorkInPool
from tfdist.waiting import awaited

STATES = "clients"


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        model: the model as make_model compiles it, with the weights after the last round.
        rounds: a record of each round.
    """

    model: keras.Model
    rounds: Sequence[RoundRecord]


def simulate(
    app: App,
    *,
    rounds: int,
    seed: int = 0,
    folder: str | Path | None = None,
    resume: bool = False,
    liars: Liars | None = None,
    processes: int = 1,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Simulation:
    """Run an application on this machine, without a transport.

    One model and one graph serve all clients of a process, and memory does not grow with their number. A run over real
    processes with the same application, seed and participants has the same weights, bit for bit.

    Args:
        app: the application.
        rounds: the number of rounds; with `resume`, earlier rounds are counted.
        seed: the seed that decides which clients take part, their order of examples and their dropout. Initial weights
            come from make_model: call `keras.utils.set_random_seed` before, if they should be the same in each run.
        folder: the folder for a checkpoint of each round and the records of all; None: nothing is kept.
        resume: whether to resume the run in the folder.
        liars: clients that lie, to see whether training survives them.
        processes: the number of processes that train clients at the same time; the result has the same bits. With 1,
            this process trains. With more, other processes train, each with a model of its own, and the application's
            functions and data are sent to them.
        on_round: a function that is called with the record of each round.

    Returns:
        The trained model and the records.
    Raises:
        ConfigError: the model, the data or the participation cannot be used, or the folder has another run.
        DeadlineError: a round got too few updates too often.

    Example:
        >>> import keras, numpy as np
        >>> from tfdist.federated import App, FedAvg, simulate
        >>> def make_model():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        ...     model.compile(keras.optimizers.SGD(0.5), "mse")
        ...     return model
        >>> x = np.linspace(-1, 1, 8, dtype="float32")[:, np.newaxis]
        >>> result = simulate(App(make_model, [(x, 2 * x), (x, 4 * x)], FedAvg(batch_size=None)), rounds=60)
        >>> round(float(result.model.layers[0].kernel[0, 0]), 2)  # between the two clients
        3.0
    """
    if not isinstance(app, App):
        raise ConfigTypeError(
            f"app is {validation.shown(app)}; it must be a tfdist.federated.App.",
            name="app",
            received=type(app).__name__,
        )
    validation.integer("processes", processes, minimum=1)
    clients = app.names()
    rules = app.rules(rounds=rounds, clients=len(clients), seed=seed)
    place = None if folder is None else Path(folder)
    with tempfile.TemporaryDirectory(prefix="tfdist-clients-") as temporary:
        states = ClientStates(Path(temporary) if place is None else place / STATES)
        trainer = app.trainer()
        session = FederatedSession(
            app,
            rules,
            trainer.local.weights(),
            clients=len(clients),
            evaluate=evaluation_of(app, trainer),
            folder=place,
            resume=resume,
            journals=False,  # a round is trained again in less time than its updates take on the disk
            around=(lambda one: one) if liars is None else lambda one: Deceived(one, liars),
        )
        personal = {name: trainer.local.initial[name] for name in trainer.local.personal}
        simulated = SimulatedClients(app.client_data, liars, frozenset() if liars is None else among(liars, clients))
        work: ClientWork = WorkHere(trainer, simulated)
        if processes > 1:
            work = WorkInPool(app, simulated, processes, personal)
        try:
            _Driver(session, work, states if trainer.keeps_state else None, on_round).run(clients)
        finally:
            work.close()
    model = app.make_model()
    trainer.local.set(session.state.weights)
    model.set_weights(trainer.model.get_weights())
    return Simulation(model, tuple(session.records))


class _Driver:
    """The driver that carries out the actions of a session, one after another, in the order in which they came."""

    def __init__(
        self,
        session: FederatedSession,
        work: ClientWork,
        states: ClientStates | None,
        on_round: Callable[[RoundRecord], None] | None,
    ) -> None:
        self._session, self._work, self._states = session, work, states
        self._on_round = on_round
        self._told = len(session.records)
        self._actions = deque[Action]()
        self._begun = dict[Action, Future[Any]]()
        self._deadline: messages.SetDeadline | None = None

    def run(self, clients: Sequence[str]) -> None:
        self._actions.extend(self._session.start())
        for client in clients:
            self._tell(messages.Joined(client))
        while not self._session.machine.is_over:
            if self._actions:
                self._do(self._actions.popleft())
            elif self._deadline is not None:  # nothing else can happen any more
                at, self._deadline = self._deadline, None
                self._tell(messages.DeadlinePassed(at.round, at.attempt, at.phase))
        for action in self._actions:
            if isinstance(action, messages.Stop) and action.error:
                raise DeadlineError(f"the run ended: {action.error}.")

    def _tell(self, event: Event, update: Any = None) -> None:
        self._actions.extend(self._session.handle(event, update))
        for record in self._session.records[self._told :]:
            self._told += 1
            if self._on_round is not None:
                self._on_round(record)

    def _do(self, action: Action) -> None:
        match action:
            case messages.SetDeadline():
                self._deadline = action
            case messages.Configure(round, attempt, clients):
                self._tell(messages.Configured(round, attempt, clients))
            case messages.Train(round, attempt, client):
                if (found := self._result(action)) is not None:  # else it is cancelled
                    update, state = found
                    if self._states is not None:
                        self._states.save(client, (round, attempt), state, counted=self._session.counted(client))
                    self._tell(messages.Trained(round, attempt, client, update.examples), update)
            case messages.Evaluate(round, attempt, client):
                if (found := self._result(action)) is not None:
                    self._tell(messages.Evaluated(round, attempt, client, *found))

    def _result(self, action: Action) -> Any:
        """Return the result of a training or evaluation, None if it does not count; meanwhile begin the next ones."""
        following = (one for one in self._actions if type(one) is type(action))
        for one in (action, *islice(following, self._work.ahead - 1)):
            if one not in self._begun and self._counts(one):
                self._begun[one] = self._begin(one)
        future = self._begun.pop(action, None)
        return awaited(future).result() if future is not None and self._counts(action) else None

    def _counts(self, action: Action) -> bool:
        match action:
            case messages.Train(round, attempt, client):
                return not self._session.machine.refusal(messages.Trained(round, attempt, client, 1))
            case messages.Evaluate(round, attempt, client):
                return not self._session.machine.refusal(messages.Evaluated(round, attempt, client, 1))
        return False

    def _begin(self, action: Action) -> "Future[Any]":
        if isinstance(action, messages.Train):
            return self._work.train(self._session.task(action), self._state_of(action.client))
        assert isinstance(action, messages.Evaluate)
        return self._work.evaluate(action.client, self._session.state.weights, self._state_of(action.client))

    def _state_of(self, client: str) -> Arrays:
        return {} if self._states is None else self._states.load(client, self._session.counted(client))
