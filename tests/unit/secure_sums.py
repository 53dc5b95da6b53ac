"""Run secure sums in one process: clients that fall silent at a phase, and messages that are changed on their way."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tfdist.federated.secure.mask_stream import Words, word_type
from tfdist.federated.secure.masking_client import MaskingClient, Phase
from tfdist.federated.secure.masking_plan import MaskingPlan
from tfdist.federated.secure.masking_server import MaskingServer

METHODS = {
    Phase.ADVERTISE: "advertise",
    Phase.SHARE: "share",
    Phase.UPLOAD: "upload",
    Phase.CONFIRM: "confirm",
    Phase.REVEAL: "reveal",
}


def names(count: int) -> list[str]:
    return [f"c{index:03d}" for index in range(count)]


def identities(clients: Iterable[str]) -> tuple[dict[str, Ed25519PrivateKey], dict[str, bytes]]:
    """The signing keys of clients, the same in every run, and the roster of their public keys."""
    keys = {name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"-")) for name in clients}
    return keys, {name: key.public_key().public_bytes_raw() for name, key in keys.items()}


class Sum:
    """A secure sum of random vectors, phase by phase."""

    def __init__(self, count: int, *, length: int = 5, bits: int = 32, session: bytes = b"s", **plan: Any) -> None:
        self.plan = MaskingPlan.of(names(count), session=session, length=length, bits=bits, **plan)
        keys, self.roster = identities(self.plan.clients)
        self.server = MaskingServer(self.plan, self.roster)
        self.clients = {name: MaskingClient(self.plan, name, keys[name], self.roster) for name in self.plan.clients}
        random = np.random.default_rng(count)
        top = 2**bits
        self.vectors = {
            n: random.integers(0, top, length, np.uint64).astype(word_type(bits)) for n in self.plan.clients
        }
        self.requests: dict[str, dict[str, Any]] = {name: {} for name in self.plan.clients}
        self.uploads: dict[str, Words] = {}

    def answer(self, name: str, phase: Phase) -> Any:
        """Return the answer of a client to its request of a phase."""
        arguments = dict(self.requests[name])
        if phase == Phase.UPLOAD:
            arguments["words"] = self.vectors[name]
        return getattr(self.clients[name], METHODS[phase])(**arguments)

    def step(self, silent: Iterable[str] = ()) -> None:
        """One phase, without these clients."""
        phase = self.server.phase
        for name in sorted(self.server.awaited - set(silent)):
            answer = self.answer(name, phase)
            if phase == Phase.UPLOAD:
                self.uploads[name] = answer
            self.server.receive(name, phase, answer)
        self.requests = {name: copy.deepcopy(asked) for name, asked in self.server.advance().items()}

    def run(self, silent_from: Mapping[str, int], change: Callable[["Sum"], None] = lambda _: None) -> Words:
        """All phases; a client says nothing from its phase on. `change` may change what is on its way."""
        while self.server.phase != Phase.DONE:
            phase = self.server.phase
            self.step([name for name, silent in silent_from.items() if silent <= phase])
            change(self)
        return self.server.result()

    def expected(self, clients: Iterable[str]) -> Words:
        """The sum of the vectors of these clients."""
        found = np.zeros(self.plan.length, word_type(self.plan.bits))
        for name in clients:
            found += self.vectors[name]
        return found
