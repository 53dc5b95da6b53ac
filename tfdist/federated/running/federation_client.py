"""A run on a client, which answers the server's questions, and repeats an answer that was lost on its way."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdist.errors import DisagreementError
from tfdist.federated.app import App
from tfdist.federated.client_privacy import require_spendable
from tfdist.federated.client_update import Arrays
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.clients.local_training import LocalTrainer, TrainTask
from tfdist.federated.running.client_workers import IDLE_SECONDS, LedTrainer
from tfdist.federated.running.secure_rounds import SecureMember
from tfdist.federated.secure.masking_plan import ProtocolError
from tfdist.federated.transport.array_frames import FrameError
from tfdist.federated.transport.server_link import ServerLink
from tfdist.privacy.budget import PrivacyBudgetError

_Answer = dict[str, Any]


class FederationClient:
    """The side of a run that answers the questions of a server about one client's data."""

    def __init__(
        self,
        app: App,
        trainer: LocalTrainer | LedTrainer,
        name: str,
        states: ClientStates,
        *,
        secure: SecureMember | None = None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._app, self._trainer, self._name = app, trainer, name
        self._states, self._secure, self._told = states, secure, told
        self._data = app.data_of(name)
        self._run: str | None = None
        self._answers = dict[tuple[Any, ...], _Answer]()  # to the questions of the last round

    def run(self, link: ServerLink) -> str:
        """Answer until the server ends the run; return its error, "" if there is none."""
        led = self._trainer if isinstance(self._trainer, LedTrainer) else None
        while True:
            message = link.take(None if led is None else IDLE_SECONDS)
            if message is None:
                if led is not None:
                    led.wait()
                continue
            if message.get("kind") == "end":
                return str(message.get("error", ""))
            if message.get("kind") == "ask":
                self._check_run(message.get("run"))
                link.send(self.answer(message))

    def _check_run(self, run: object) -> None:
        """Refuse a second run: a client that has begun would train on the same weights again."""
        if self._run is None and isinstance(run, str):
            self._run = run
        if run != self._run:
            raise DisagreementError(
                "the server has begun another run; this client belongs to the one before. Start it again to take part.",
                name=self._name,
                received=str(run)[:100],
            )

    def answer(self, message: Mapping[str, Any]) -> _Answer:
        """Return the answer to a question; the same question gets the same answer."""
        what, turn = message.get("what"), (message.get("round"), message.get("attempt"))
        secure = message.get("secure")
        session = secure.get("session") if isinstance(secure, Mapping) else message.get("session")
        question = (*turn, what, session)
        if question not in self._answers:
            self._answers = {asked: said for asked, said in self._answers.items() if asked[0] == turn[0]}
            try:
                self._answers[question] = self._made(message, what, turn)
            except (ProtocolError, FrameError, PrivacyBudgetError) as error:
                self._told(str(error))
                self._answers[question] = {"kind": "failed", "reason": str(error)}
        return {"what": what, "round": turn[0], "attempt": turn[1], **self._answers[question]}

    def _made(self, message: Mapping[str, Any], what: object, turn: tuple[Any, Any]) -> _Answer:
        if not all(type(number) is int for number in turn):
            raise FrameError("a question has no round.")
        if what == "train":
            return self._train(message, turn)
        if what == "evaluate":
            state = self._state(message)
            examples, metrics = self._trainer.evaluate(self._weights(message), self._data, state)
            return {"kind": "answer", "examples": examples, "metrics": metrics}
        if self._secure is None:
            raise ProtocolError(
                f"the server asks {str(what)[:50]!r}, which this client does not answer.", name=self._name
            )
        return {"kind": "answer", "session": message.get("session"), "answer": self._secure.answer(message)}

    def _train(self, message: Mapping[str, Any], turn: tuple[int, int]) -> _Answer:
        given = message.get("secure")
        if (given is None) != (self._secure is None):
            raise ProtocolError(
                "server and client differ on secure aggregation; begin both with --secure, or none.", name=self._name
            )
        if self._secure is not None and self._app.privacy is not None:
            require_spendable(self._app.privacy, turn[0] + 1)
        seed = message.get("seed")
        if type(seed) is not int:
            raise FrameError("a training has no seed.")
        task = TrainTask(*turn, self._name, seed, self._weights(message), _turn_of(message))
        before = self._state(message)
        update, state = self._trainer.train(task, self._data, before)
        sent, kept = self._trainer.codec.encode(update.arrays, before)
        if self._trainer.keeps_state:
            self._states.save(self._name, turn, {**state, **kept}, counted=task.counted)
        found: _Answer = {"kind": "answer", "examples": update.examples}
        if self._secure is None:
            self._told(f"round {turn[0] + 1}: trained on {update.examples:,} examples; {_shown(update.metrics)}")
            return {**found, "arrays": sent, "metrics": dict(update.metrics)}
        weight = self._app.algorithm.weight(update.examples)
        words = self._secure.masked(given, update.arrays, weight)
        told = f"{update.examples:,} examples{self._secure.clipping}; {_shown(update.metrics)}"
        self._told(f"round {turn[0] + 1}: trained on {told}")
        return {**found, "session": given["session"] if isinstance(given, Mapping) else None, "answer": words}

    def _weights(self, message: Mapping[str, Any]) -> Arrays:
        arrays = message.get("arrays")
        if not isinstance(arrays, dict) or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise FrameError("a question has no weights.")
        for name, own in self._trainer.local.weights().items():
            if name not in arrays or arrays[name].shape != own.shape:
                raise FrameError(
                    f"the server's weights have no {name} of shape {own.shape}. Server and client must run the same "
                    "application."
                )
        return arrays

    def _state(self, message: Mapping[str, Any]) -> Arrays:
        return self._states.load(self._name, _turn_of(message)) if self._trainer.keeps_state else {}


def _turn_of(message: Mapping[str, Any]) -> tuple[int, int] | None:
    counted = message.get("counted")
    if counted is None:
        return None
    if not isinstance(counted, list) or len(counted) != 2 or not all(type(number) is int for number in counted):
        raise FrameError("a question has no round that counted.")
    return counted[0], counted[1]


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
