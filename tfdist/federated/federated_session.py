"""The server's side of a run without its transport: the state machine of rounds, the weights, and the files.

A driver passes events, with the updates that belong to them, and carries out the actions that come back. With a folder,
every event is written to a journal before it has an effect, so that a killed server resumes where it was.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdist.checkpoint import Checkpoint
from tfdist.errors import ConfigError
from tfdist.federated.aggregation import Aggregation, Mean, clipped_by
from tfdist.federated.algorithms.algorithm import WEIGHTS, arrays_of_clients
from tfdist.federated.app import App, training_seed
from tfdist.federated.client_privacy import ClippedSum, PrivateRounds
from tfdist.federated.client_update import Arrays, Update, is_finite, require_same_shapes
from tfdist.federated.clients.client_data import local_data
from tfdist.federated.clients.local_training import LocalTrainer, TrainTask
from tfdist.federated.clients.update_codec import UpdateCodec
from tfdist.federated.round_history import RoundRecord
from tfdist.federated.rounds import round_messages as messages
from tfdist.federated.rounds.round_machine import RoundMachine, weighted_metrics
from tfdist.federated.rounds.round_messages import Action, Event
from tfdist.federated.rounds.round_rules import RoundRules
from tfdist.federated.session_files import SessionFiles

_log = logging.getLogger(__name__)
Evaluation = Callable[[Arrays], dict[str, float]]
_CLIPPED = "clipped_values"


def evaluation_of(app: App, trainer: LocalTrainer) -> Evaluation | None:
    """Return a function that evaluates weights on the server's data; None without such data."""
    if app.test_data is None:
        return None
    test = local_data(app.test_data, "test_data")
    return lambda weights: trainer.evaluate(weights, test, {})[1]


class FederatedSession:
    """A run on its server.

    ``weights`` are the weights of a new run; a resumed run has its own. An update under masks, of ``masked_bytes``
    bytes, never comes here: the driver carries out the action `Aggregate` and calls `complete`, or reports
    `AggregationFailed` or `SumHidden`. ``around`` may wrap the aggregation of a round in another one.
    """

    def __init__(
        self,
        app: App,
        rules: RoundRules,
        weights: Arrays,
        *,
        clients: int,
        evaluate: Evaluation | None = None,
        folder: Path | None = None,
        resume: bool = False,
        journals: bool = True,
        masked_bytes: int | None = None,
        around: Callable[[Aggregation], Aggregation] = lambda one: one,
    ) -> None:
        self._files = None if folder is None else SessionFiles(folder, journals=journals)
        found = None if self._files is None else self._files.newest()
        if found is not None and not resume:
            raise ConfigError(
                f"{folder} has a run already, with {found.step} rounds done. "
                "Resume it (--resume), or name another folder.",
                name="folder",
                received=str(folder),
                path=folder,
            )
        self._private: PrivateRounds | None = None
        if app.privacy is not None:
            rate = app.participation.fraction
            self._private = PrivateRounds(
                app.privacy,
                rate=rate,
                rounds=rules.rounds,
                expected=rate * clients,
                by_clients=masked_bytes is not None,
                folder=folder,
                done=None if found is None else found.step,
            )
            rules = dataclasses.replace(rules, salt=self._private.salt)
        self.app, self.rules, self.clients = app, rules, clients
        self.machine = RoundMachine(rules)
        self.state = app.algorithm.begin(weights)
        self.codec = UpdateCodec(app.compression, arrays_of_clients(app.algorithm, self.state))
        self.records = list[RoundRecord]()
        self._counted = dict[str, tuple[int, int]]()
        self._evaluate, self._masked_bytes, self._around = evaluate, masked_bytes, around
        self._asked: messages.Aggregate | None = None
        self._is_resumed = found is not None
        self._began = time.monotonic()
        self._forget()
        if found is not None and self._files is not None:
            self._resume(self._files, found)
        if self._private is not None:
            self._private.require(rules.rounds - len(self.records))
        if found is None and self._files is not None:
            self._save(self._files)
        self._next_noise()

    def _save(self, files: SessionFiles) -> None:
        files.save(
            len(self.records),
            self.state,
            {
                "machine": self.machine.state(),
                "counted": {client: list(turn) for client, turn in self._counted.items()},
                "run": self._run(),
                **({} if self._private is None else {"privacy": self._private.state()}),
            },
        )

    def _run(self) -> dict[str, str | int]:
        found: dict[str, str | int] = {
            "algorithm": repr(self.app.algorithm),
            "seed": self.rules.seed,
            "clients": self.clients,
        }
        if self.app.privacy is not None:
            found["privacy"] = repr(self.app.privacy)
        if self.codec.shown is not None:
            found["compression"] = self.codec.shown
        return found

    def _next_noise(self) -> None:
        if self._private is None:
            return
        if len(self.records) < self.rules.rounds:
            self._private.begin_round(len(self.records))
        else:
            self._private.end()

    def _resume(self, files: SessionFiles, found: Checkpoint) -> None:
        now, before = self._run(), found.state["run"]
        for name in dict.fromkeys([*now, *before]):
            value = now.get(name)
            if before.get(name) != value:
                raise ConfigError(
                    f"{name} is {value}; the run that is resumed has {before.get(name)}. Give it again, or begin "
                    "another run in another folder.",
                    name=name,
                    received=value,
                )
        begun = self.state
        self.state = files.state_of(found)
        require_same_shapes(self.state.weights, begun.weights)  # which may be of bfloat16, as no update is
        self.machine = RoundMachine.restore(self.rules, found.state["machine"])
        self._counted = {client: (turn[0], turn[1]) for client, turn in found.state["counted"].items()}
        self.records = files.rounds(found.step)
        if self._private is not None:
            self._private.restore(found.state["privacy"])
        for event, arrays, metrics in files.replayed():
            update = None
            if isinstance(event, messages.Trained) and arrays is not None:
                update = Update(arrays, event.examples, metrics)
            self._apply(event, update, arrays, metrics)

    # --- for the driver -----------------------------------------------------------------------------------------------
    def start(self) -> list[Action]:
        """Return the first actions, of a new run or of a resumed one."""
        return self.handle(messages.Restarted()) if self._is_resumed else self.machine.start()

    def handle(self, event: Event, update: Update | None = None) -> list[Action]:
        """Handle an event, with the update that belongs to `Trained`; return the actions that remain for the driver.

        A mean with NaN is NaN, so a client whose update is not finite counts as failed, unless the rule is a robust
        one.
        """
        is_mean = isinstance(self.app.aggregator, Mean)
        if isinstance(event, messages.Trained) and update is not None and is_mean and not is_finite(update):
            reason = "its update has NaN or infinite numbers"
            if not self.machine.refusal(event):
                _log.warning("round %d: client %s is left out: %s.", event.round + 1, event.client, reason)
            event, update = messages.ClientFailed(event.round, event.attempt, event.client, reason), None
        return self._taken(event, update, None if update is None else update.arrays)

    def _taken(
        self, event: Event, update: Update | None, arrays: Arrays | None, counts: Mapping[str, float] | None = None
    ) -> list[Action]:
        metrics = update.metrics if update is not None else counts or {}
        if not self.machine.refusal(event):
            if update is not None:
                require_same_shapes(update.arrays, arrays_of_clients(self.app.algorithm, self.state))
            if self._files is not None:
                self._files.write(event, arrays, metrics)
        return self._apply(event, update, arrays, metrics)

    def task(self, action: messages.Train) -> TrainTask:
        """Return the task of a client that is to train."""
        seed = training_seed(self.rules.seed, action.round, action.client)
        arrays = arrays_of_clients(self.app.algorithm, self.state)
        return TrainTask(action.round, action.attempt, action.client, seed, arrays, self._counted.get(action.client))

    def counted(self, client: str) -> tuple[int, int] | None:
        """Return the round and attempt of the client's last update that was used."""
        return self._counted.get(client)

    def sync(self) -> None:
        """Let no loss of power undo whose updates have arrived: the clients of a sum reveal it once."""
        if self._files is not None:
            self._files.sync()

    def complete(self, action: messages.Aggregate, aggregate: Arrays, *, clipped_values: int) -> list[Action]:
        """Use the aggregate that the driver has made for an action `Aggregate`."""
        counts = {} if self._private is not None else {_CLIPPED: clipped_values}  # clients with noise do not count
        return self._taken(messages.Aggregated(action.round, action.attempt), None, aggregate, counts)

    # --- events and actions -------------------------------------------------------------------------------------------
    def _apply(
        self, event: Event, update: Update | None, arrays: Arrays | None, metrics: Mapping[str, float]
    ) -> list[Action]:
        if not self.machine.refusal(event):
            if isinstance(event, messages.Trained) and update is not None:
                self._add(event.client, update)
            if isinstance(event, messages.Aggregated) and arrays is not None and self._asked is not None:
                self._clipped = {name: int(metrics[name]) for name in (_CLIPPED,) if name in metrics}
                self._take(self._asked, arrays)
        return self._done(self.machine.handle(event))

    def _done(self, actions: Sequence[Action]) -> list[Action]:
        """Carry out the actions that need no driver; return the others."""
        left = list[Action]()
        for action in actions:
            match action:
                case messages.Aggregate():
                    self._asked = action
                    left += self._aggregate(action) if self._masked_bytes is None else [action]
                case messages.EvaluateCentrally(round, attempt):
                    metrics = self._evaluate(self.state.weights) if self._evaluate is not None else {}
                    left += self._done(self.machine.handle(messages.EvaluatedCentrally(round, attempt, metrics)))
                case messages.EndRound():
                    self._end_round(action)
                case messages.Discard():
                    self._forget()
                    left.append(action)
                case messages.Configure():
                    self._order = list(action.clients)
                    left.append(action)
                case _:
                    left.append(action)
        return left

    def _aggregate(self, action: messages.Aggregate) -> list[Action]:
        for client in action.clients:
            self._flush(client)
        try:
            aggregate = self._aggregation.result()
        except ConfigError as error:
            failed = messages.AggregationFailed(action.round, action.attempt, str(error))
            return self._done(self.machine.handle(failed))
        if (count := clipped_by(self._aggregation)) is not None:
            self._clipped = {"clipped_updates": count}
        if self._private is not None:
            self.sync()
            aggregate = self._private.mean(aggregate, (action.round, action.attempt))
        self._take(action, aggregate)
        return self._done(self.machine.handle(messages.Aggregated(action.round, action.attempt)))

    def _take(self, action: messages.Aggregate, aggregate: Arrays) -> None:
        part = len(action.clients) / self.clients
        if self._private is not None:  # clients' noise is in all that they sent
            kept = {name: array for name, array in aggregate.items() if name.startswith(WEIGHTS)}
            aggregate = {name: kept.get(name, np.zeros(array.shape)) for name, array in aggregate.items()}
        self.state = self.app.algorithm.update(self.state, aggregate, part=part)
        self._counted.update(dict.fromkeys(action.clients, (action.round, action.attempt)))

    def _add(self, client: str, update: Update) -> None:
        """Keep an update until those selected before it are aggregated, so that sums follow the order of selection."""
        self._waiting[client] = update
        while self._order and self._order[0] in self._waiting:
            self._flush(self._order[0])

    def _flush(self, client: str) -> None:
        update = self._waiting.pop(client, None)
        if client in self._order:
            self._order = self._order[self._order.index(client) + 1 :]
        if update is not None:
            self._trained.append((update.examples, dict(update.metrics)))
            self._aggregation.add(update, self.app.algorithm.weight(update.examples))

    def _forget(self) -> None:
        self._waiting = dict[str, Update]()
        self._order = list[str]()
        self._trained = list[tuple[int, dict[str, float]]]()
        privacy = self.app.privacy
        begun = self.app.aggregator.start() if privacy is None else ClippedSum(privacy.clip, self.state.weights)
        self._aggregation: Aggregation = self._around(begun)
        self._clipped = dict[str, int]()

    def _end_round(self, ended: messages.EndRound) -> None:
        now = time.monotonic()
        record = RoundRecord(
            round=ended.round,
            attempt=ended.attempt,
            selected=len(ended.selected),
            used=len(ended.trained),
            examples=sum(ended.trained.values()),
            train=weighted_metrics(self._trained),
            evaluation=dict(ended.metrics),
            seconds=now - self._began,
            bytes=len(ended.trained) * (self._masked_bytes or self.codec.sent_bytes),
            epsilon=None if self._private is None else self._private.count(),
            **self._clipped,
        )
        self._began = now
        self.records.append(record)
        self._forget()
        if self._files is not None:
            self._files.add_round(record)
            self._save(self._files)
        self._next_noise()
