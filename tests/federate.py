"""A federated run in one process, whose messages cross no socket but are packed and read as frames."""

import functools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from tfdist.federated import App, FedAvg, simulate
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.clients.local_training import LocalTrainer
from tfdist.federated.federated_session import FederatedSession, evaluation_of
from tfdist.federated.running.federation_client import FederationClient
from tfdist.federated.running.federation_run import Common, common
from tfdist.federated.running.federation_server import FederationServer
from tfdist.federated.running.secure_rounds import SecureMember, SecureRounds
from tfdist.federated.secure_sums import SecureSums
from tfdist.federated.transport.array_frames import pack, unpack_whole
from tfdist.federated.transport.client_hub import Came, Event, Said
from tfdist.federated.transport.federation_keys import Federation

NAMES = ("berlin", "paris", "rome", "vienna")
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)
DATA = {
    name: (X[start : start + 4 + start], Y[start : start + 4 + start])
    for name, start in zip(NAMES, range(4), strict=True)
}
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"-")) for name in NAMES}
LIST = Federation("00" * 32, {name: key.public_key().public_bytes_raw() for name, key in KEYS.items()})
SUMS = SecureSums(clip=0.5, value_bits=20)


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


@functools.cache
def trainer_of(algorithm: Any, compression: Any = None) -> LocalTrainer:
    """One model and one graph for all runs with this algorithm."""
    return LocalTrainer(make_model, algorithm, (), compression)


class Killed(Exception):  # noqa: N818
    """The server is killed here."""


class Federate:
    """A run whose messages cross no socket, but are packed and read as frames; it can be killed at any event."""

    def __init__(
        self, folder: Path, algorithm: Any = None, sums: SecureSums | None = None, rounds: int = 2, **options: Any
    ) -> None:
        self.folder, self.sums = folder, sums
        self.app = App(make_model, DATA, algorithm or FedAvg(epochs=2, batch_size=4, most_examples=7), **options)
        self.trainer = trainer_of(self.app.algorithm, self.app.compression)
        self.lines: list[str] = []
        self.same: Common = common(self.app, self.trainer, LIST, rounds=rounds, seed=4, sums=sums)
        self.clients = {name: self.client(name) for name in NAMES}
        self.events = deque[Event]()
        self.kill_at = self.taken = self.now = 0
        self.change: Callable[[str, dict[str, Any]], Any] = lambda _, answer: answer

    def client(self, name: str) -> FederationClient:
        folder = self.folder / "of-clients"
        secure = None
        if self.sums is not None and self.same.code is not None:
            parts = (self.sums, self.same.code, self.same.layout, name, KEYS[name], LIST.clients)
            secure = SecureMember(*parts, folder / name, noise=self.same.noise)
        return FederationClient(
            self.app, self.trainer, name, ClientStates(folder), secure=secure, told=self.lines.append
        )

    # --- a hub ---
    def send(self, client: str, message: dict[str, Any]) -> None:
        if message["kind"] == "ask" and client in self.clients:
            answer = self.change(client, self.clients[client].answer(copied(message)))
            self.events.append(answer if not isinstance(answer, dict) else Said(client, copied(answer)))

    def take(self, timeout_seconds: float | None) -> Event | None:
        self.taken += 1
        if self.taken == self.kill_at:
            raise Killed
        if self.events:
            return self.events.popleft()
        assert timeout_seconds is not None, "the server waits for ever"
        self.now += timeout_seconds + 1
        return None

    # --- the run ---
    def run(self, *, resume: bool = False) -> list[NDArray[Any]]:
        place = self.folder / "server"
        secure = None
        if self.sums is not None and self.same.code is not None:
            secure = SecureRounds(self.sums, self.same.code, self.same.layout, LIST.clients, place)
        session = FederatedSession(
            self.app,
            self.same.rules,
            self.trainer.local.weights(),
            clients=4,
            evaluate=evaluation_of(self.app, self.trainer),
            folder=place,
            resume=resume,
            masked_bytes=self.same.masked_bytes,
        )
        self.events = deque(Came(name) for name in NAMES)
        self.session = session
        server = FederationServer(
            self.app,
            session,
            self,  # type: ignore[arg-type]
            NAMES,
            run="a run",
            secure=secure,
            told=self.lines.append,
            clock=lambda: self.now,
        )
        server.run()
        return [np.array(session.state.weights[name]) for name in sorted(session.state.weights)]

    def run_killed_at(self, event: int) -> list[NDArray[Any]]:
        self.kill_at = event
        with pytest.raises(Killed):
            self.run()
        return self.run(resume=True)


def copied(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as it arrives, packed and unpacked."""
    return unpack_whole(b"".join(pack(message)))


def simulated(algorithm: Any = None, **options: Any) -> list[NDArray[Any]]:
    app = App(make_model, DATA, algorithm or FedAvg(epochs=2, batch_size=4, most_examples=7), **options)
    return list(simulate(app, rounds=2, seed=4).model.get_weights())


def distance(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
