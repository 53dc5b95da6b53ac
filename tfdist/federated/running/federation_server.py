"""A run on its server: the rounds of the state machine, with clients that connect, answer, leave and come back."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.errors import ConfigError, DeadlineError
from tfdist.federated.app import App
from tfdist.federated.client_update import Update
from tfdist.federated.federated_session import FederatedSession
from tfdist.federated.round_history import RoundRecord
from tfdist.federated.rounds import round_messages as messages
from tfdist.federated.rounds.round_messages import Action, Event
from tfdist.federated.running.secure_rounds import QUESTIONS, Asks, SecureRounds
from tfdist.federated.secure.masking_client import Phase as Masking
from tfdist.federated.secure.masking_plan import AbortedError, ProtocolError
from tfdist.federated.transport.array_frames import FrameError
from tfdist.federated.transport.client_hub import Came, ClientHub, Gone, Said

_MOST_EXAMPLES = 1 << 50
_LONGEST_REASON = 500
_PLAIN = ("kind", "what", "round", "attempt", "session")  # of an answer: never arrays, whose comparison is one too
_Turn = tuple[int, int]


class FederationServer:
    """The driver that carries out the actions of a session with the clients of a hub.

    ``told`` is called with news for the user: which clients came, which left, and what was refused.
    """

    def __init__(
        self,
        app: App,
        session: FederatedSession,
        hub: ClientHub,
        clients: Sequence[str],
        *,
        run: str,
        secure: SecureRounds | None = None,
        told: Callable[[str], None] = lambda _: None,
        on_round: Callable[[RoundRecord], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._session, self._hub, self._secure = app, session, hub, secure
        self._clients, self._run = frozenset(clients), run
        self._told, self._on_round, self._clock = told, on_round, clock
        self._shown = len(session.records)
        self._actions = deque[Action]()
        self._deadline: tuple[messages.SetDeadline, float] | None = None
        self._masking_until: float | None = None
        self._here = set[str]()
        self._asked = dict[str, dict[str, Any]]()  # client -> its open question
        self._aggregate: messages.Aggregate | None = None

    @property
    def _turn(self) -> _Turn:
        return self._session.machine.round, self._session.machine.attempt

    def run(self) -> None:
        """Run all rounds; raise DeadlineError if one fails too often."""
        if self._secure is not None:
            self._ask_all(self._secure.resume(self._turn))
            self._wait_for_masking()
        self._actions.extend(self._session.start())
        error = self._drive()
        for client in self._here:
            self._hub.send(client, {"kind": "end", "error": error})
        if error:
            raise DeadlineError(f"the run ended: {error}.")

    def _drive(self) -> str:
        while True:
            while self._actions:
                action = self._actions.popleft()
                if isinstance(action, messages.Stop):
                    return action.error
                self._do(action)
            if self._session.machine.is_over:
                return ""
            self._wait()

    def _wait(self) -> None:
        """Wait for an event or a deadline. Clients that say something all the time postpone no deadline."""
        times = [at for at in (self._deadline and self._deadline[1], self._masking_until) if at is not None]
        event = self._hub.take(max(min(times) - self._clock(), 0.0) if times else None)
        match event:
            case Came(client):
                self._came(client)
            case Gone(client, reason) if client in self._here:
                self._here.discard(client)
                self._told(f"{client} is gone: {reason}")
                self._masked_without(client)
                self._tell(messages.Left(client))
            case Said(client, message):
                self._said(client, message)
        self._time_passed()

    def _time_passed(self) -> None:
        now = self._clock()
        if self._masking_until is not None and now >= self._masking_until:
            self._masking_until = None
            self._masking_over()
        if self._deadline is not None and now >= self._deadline[1]:
            at, self._deadline = self._deadline[0], None
            self._tell(messages.DeadlinePassed(at.round, at.attempt, at.phase))

    def _tell(self, event: Event, update: Update | None = None) -> None:
        self._take(self._session.handle(event, update))

    def _take(self, actions: Sequence[Action]) -> None:
        self._actions.extend(actions)
        for record in self._session.records[self._shown :]:
            self._shown += 1
            # answers to these come too late, and each question has the weights of its round
            self._asked = {client: one for client, one in self._asked.items() if one["round"] > record.round}
            if self._secure is not None:
                self._secure.forget()
            self._on_round(record)

    # --- what the machine asks for ------------------------------------------------------------------------------------
    def _do(self, action: Action) -> None:
        match action:
            case messages.SetDeadline():
                self._deadline = (action, self._clock() + action.seconds)
            case messages.Configure(round, attempt, clients):
                self._configure((round, attempt), clients)
            case messages.Train():
                self._train(action)
            case messages.Evaluate(round, attempt, client):
                arrays, counted = self._session.state.weights, self._session.counted(client)
                self._ask(client, {"what": "evaluate", "arrays": arrays, "counted": counted}, (round, attempt))
            case messages.Aggregate():
                self._aggregate = action
                self._end_sum()
            case messages.Discard(_, _, reason):
                self._told(f"round {action.round + 1} is tried again: {reason}")
                self._masking_until = None
                if self._secure is not None:
                    self._secure.forget()
            case messages.Cancel(_, _, client):
                self._asked.pop(client, None)

    def _configure(self, turn: _Turn, clients: Sequence[str]) -> None:
        if self._secure is None:
            self._tell(messages.Configured(*turn, tuple(clients)))
            return
        try:
            asks = self._secure.begin(turn, clients)
        except ConfigError as error:  # fewer than three clients
            self._told(str(error))
            self._tell(messages.Configured(*turn, ()))
            return
        self._ask_all(asks)
        self._wait_for_masking()

    def _train(self, action: messages.Train) -> None:
        task = self._session.task(action)
        question = {"what": "train", "seed": task.seed, "arrays": dict(task.arrays), "counted": task.counted}
        if self._secure is not None:
            boxes = self._secure.boxes_of(action.client)
            if boxes is None:
                failed = messages.ClientFailed(action.round, action.attempt, action.client, "it has no part in the sum")
                self._tell(failed)
                return
            question["secure"] = boxes
        self._ask(action.client, question, (action.round, action.attempt))

    def _ask(self, client: str, question: Mapping[str, Any], turn: _Turn) -> None:
        asked = {"kind": "ask", "run": self._run, "round": turn[0], "attempt": turn[1], **question}
        self._asked[client] = asked
        self._hub.send(client, asked)

    def _ask_all(self, asks: Asks) -> None:
        for client, question in asks.items():
            self._ask(client, question, self._turn)

    # --- what clients say ---------------------------------------------------------------------------------------------
    def _came(self, client: str) -> None:
        if client not in self._clients:
            self._told(f"{client} is not a client of this application, and is not asked for anything")
            return
        self._told(f"{client} is here")
        self._here.add(client)
        if self._asked.get(client, {}).get("what") in QUESTIONS.values():
            self._hub.send(client, self._asked[client])
        self._tell(messages.Joined(client))

    def _said(self, client: str, message: Mapping[str, Any]) -> None:
        asked = self._asked.get(client)
        same = ("what", "round", "attempt")
        if asked is None:
            return
        arrays = [name for name in _PLAIN if isinstance(message.get(name), np.ndarray)]
        if not arrays and [message.get(name) for name in same] != [asked[name] for name in same]:
            return  # to a question that is over
        del self._asked[client]
        try:
            if arrays:
                raise FrameError(f"an answer has an array as its {arrays[0]}.")
            self._answered(client, asked, message)
        except (FrameError, ProtocolError, ConfigError) as error:  # others are the server's own
            self._told(f"{client}: {error}")
            self._masked_without(client, for_good=True)
            self._tell(messages.ClientFailed(asked["round"], asked["attempt"], client, str(error)))

    def _answered(self, client: str, asked: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        turn = asked["round"], asked["attempt"]
        if message.get("kind") != "answer":
            raise FrameError(f"it cannot {asked['what']}: {_shown(message.get('reason'))}")
        if asked["what"] == "train":
            self._trained(client, turn, message)
        elif asked["what"] == "evaluate":
            examples, metrics = _examples_of(message), _metrics_of(message)
            self._tell(messages.Evaluated(*turn, client, examples, metrics))
        elif self._secure is not None:
            self._secure.receive(client, asked["what"], dict(message))
            if not self._secure.awaited:
                self._masking_over()

    def _trained(self, client: str, turn: _Turn, message: Mapping[str, Any]) -> None:
        event = messages.Trained(*turn, client, _examples_of(message))
        if self._session.machine.refusal(event):
            return
        if self._secure is None:
            arrays = message.get("arrays")
            if not isinstance(arrays, dict):
                raise FrameError("an answer has no arrays.")
            self._tell(event, Update(self._session.codec.decode(arrays), event.examples, _metrics_of(message)))
            return
        if not self._secure.has_upload(client):
            self._secure.receive(client, "upload", dict(message))
        self._tell(event)

    # --- secure sums --------------------------------------------------------------------------------------------------
    def _wait_for_masking(self) -> None:
        """Set the deadline of a masking question: half of the set-up time."""
        if self._secure is not None and self._secure.phase in QUESTIONS:
            self._masking_until = self._clock() + self._session.rules.configure_seconds / 2

    def _masked_without(self, client: str, *, for_good: bool = False) -> None:
        """Go on without a client; one that is gone at the end of a sum may come back while others are needed."""
        secure = self._secure
        if secure is None or secure.phase not in QUESTIONS:
            return
        if for_good or secure.phase < Masking.UPLOAD:
            self._asked.pop(client, None)
            secure.drop(client)
        if not secure.awaited or (not secure.awaited & self._here and secure.is_enough):
            self._masking_over()

    def _masking_over(self) -> None:
        """End a phase of the sum, because all clients have answered or its time is over."""
        assert self._secure is not None
        self._masking_until = None
        turn = self._turn
        try:
            self._ask_all(self._secure.advance())
            if self._secure.phase == Masking.UPLOAD:
                self._tell(messages.Configured(*turn, self._secure.ready()))
            elif self._secure.is_complete:
                self._complete()
        except AbortedError as error:
            self._told(str(error))
            if self._aggregate is None:
                self._tell(messages.Configured(*turn, ()))
            else:
                self._aggregate = None
                self._asked.clear()  # a later answer would complete the sum
                failed = messages.SumHidden if self._secure.is_revealed else messages.AggregationFailed
                self._tell(failed(*turn, str(error)))
                self._secure.forget()
            return
        self._wait_for_masking()

    def _end_sum(self) -> None:
        """Remove the masks when all updates have arrived. After a restart that may have begun already."""
        assert self._secure is not None
        if self._secure.is_complete:
            self._complete()
        elif self._secure.phase in (Masking.CONFIRM, Masking.REVEAL):
            self._wait_for_masking()
        elif self._aggregate is not None and not self._secure.is_of(self._aggregate.clients):
            # the server was killed after it had added a vector, whose client did not come back; nothing is revealed yet
            self._aggregate = None
            self._tell(messages.AggregationFailed(*self._turn, "the sum has a vector of a client that is not here"))
        else:
            self._session.sync()
            self._masking_over()

    def _complete(self) -> None:
        assert self._secure is not None
        assert self._aggregate is not None
        action, self._aggregate = self._aggregate, None
        trained = self._session.machine.state()["trained"]
        weight = sum(self._app.algorithm.weight(trained[client]) for client in action.clients)
        mean = self._secure.mean(action.clients, weight)
        self._take(self._session.complete(action, mean, clipped_values=self._secure.clipped_values))


def _shown(reason: object) -> str:
    """Return a client's reason for a terminal, on which it must not move the cursor, nor end the server."""
    text = reason[:_LONGEST_REASON] if isinstance(reason, str) else "it gave no reason"
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _examples_of(message: Mapping[str, Any]) -> int:
    examples = message.get("examples")
    if type(examples) is not int or not 1 <= examples <= _MOST_EXAMPLES:
        raise FrameError("an answer does not say how many examples it is about.", received=str(examples)[:100])
    return examples


def _metrics_of(message: Mapping[str, Any]) -> dict[str, float]:
    metrics = message.get("metrics")
    if not isinstance(metrics, dict) or not all(type(value) is float for value in metrics.values()):
        raise FrameError("the metrics of an answer are no numbers.", received=str(metrics)[:100])
    return dict(metrics)
