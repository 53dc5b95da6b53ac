"""Federated training in one process: the rounds of a real run, with clients that train one after another."""

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tfdist import validation
from tfdist.errors import ConfigTypeError, DeadlineError
from tfdist.federated.app import App
from tfdist.federated.clients.client_data import local_data
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.clients.local_training import LocalTrainer
from tfdist.federated.federated_session import FederatedSession
from tfdist.federated.robust.lying_clients import Deceived, Liars, Lie, among, taught
from tfdist.federated.round_history import RoundRecord
from tfdist.federated.rounds import round_messages as messages
from tfdist.federated.rounds.round_messages import Action, Event

STATES = "clients"


@dataclass(frozen=True)
class Simulation:
    """What a simulation made.

    Attributes:
        model: with the weights after the last round, as make_model compiles it.
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
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Simulation:
    """Run an application in this process, without a transport.

    One model and one graph serve all clients, and memory does not grow with their number. A run of real processes with
    the same application, seed and participants has the same weights, bit for bit.

    Args:
        app: the application.
        rounds: how many; with `resume`, those before are counted.
        seed: decides which clients take part, their order of examples and their dropout. Initial weights are those of
            make_model: call `keras.utils.set_random_seed` before, where they should be the same in each run.
        folder: for a checkpoint of each round and the records of all; without it nothing is kept.
        resume: go on with the run in the folder.
        liars: clients that lie, to see whether training survives them.
        on_round: is called with the record of each round.

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
    clients = app.names()
    rules = app.rules(rounds=rounds, clients=len(clients), seed=seed)
    place = None if folder is None else Path(folder)
    with tempfile.TemporaryDirectory(prefix="tfdist-clients-") as temporary:
        states = ClientStates(Path(temporary) if place is None else place / STATES)
        trainer = app.trainer()
        test = None if app.test_data is None else local_data(app.test_data, "test_data")
        session = FederatedSession(
            app,
            rules,
            trainer.local.weights(),
            clients=len(clients),
            evaluate=None if test is None else lambda weights: trainer.evaluate(weights, test, {})[1],
            folder=place,
            resume=resume,
            journals=False,  # a round is trained again in less time than its updates take on the disk
            around=(lambda one: one) if liars is None else lambda one: Deceived(one, liars),
        )
        _Driver(app, session, trainer, states, liars, on_round).run(clients)
    model = app.make_model()
    trainer.local.set(session.state.weights)
    model.set_weights(trainer.model.get_weights())
    return Simulation(model, tuple(session.records))


class _Driver:
    """Does the actions of a session, one after another, in the order in which they came."""

    def __init__(
        self,
        app: App,
        session: FederatedSession,
        trainer: LocalTrainer,
        states: ClientStates,
        liars: Liars | None,
        on_round: Callable[[RoundRecord], None] | None,
    ) -> None:
        self._app, self._session, self._trainer, self._states = app, session, trainer, states
        self._liars = liars
        self._lying: frozenset[str] = frozenset()
        self._on_round = on_round
        self._told = len(session.records)
        self._actions = deque[Action]()
        self._deadline: messages.SetDeadline | None = None

    def run(self, clients: Sequence[str]) -> None:
        self._actions.extend(self._session.start())
        self._lying = frozenset() if self._liars is None else among(self._liars, clients)
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
            case messages.Train():
                self._train(action)
            case messages.Evaluate(round, attempt, client):
                examples, metrics = self._trainer.evaluate(
                    self._session.state.weights, self._app.data_of(client), self._state_of(client)
                )
                self._tell(messages.Evaluated(round, attempt, client, examples, metrics))

    def _train(self, action: messages.Train) -> None:
        if self._session.machine.refusal(messages.Trained(action.round, action.attempt, action.client, 1)):
            return  # cancelled since
        task = self._session.task(action)
        data = self._app.data_of(action.client)
        is_liar = action.client in self._lying
        if self._liars is not None and is_liar:
            data = taught(self._liars, data, getattr(self._trainer.model, "output_shape", None))
        update, state = self._trainer.train(task, data, self._state_of(action.client))
        if is_liar:
            update = Lie(update.arrays, update.examples, update.metrics)
        if self._trainer.keeps_state:
            self._states.save(action.client, (action.round, action.attempt), state)
        self._tell(messages.Trained(action.round, action.attempt, action.client, update.examples), update)

    def _state_of(self, client: str) -> Any:
        return self._states.load(client, self._session.counted(client)) if self._trainer.keeps_state else {}
