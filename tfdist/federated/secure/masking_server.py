"""The server's side of a secure sum: it passes on sealed messages, adds masked vectors, and removes the masks.

It has no secret and draws no random number, so its state follows from the messages that it received. The caller decides
when a phase ends: when no client is awaited any more, or at a deadline.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdist.federated.secure import masking_plan, shamir
from tfdist.federated.secure.mask_stream import KEY_BYTES, Words, apply_masks, public_key, word_type
from tfdist.federated.secure.masking_client import Phase, pair_key, self_key
from tfdist.federated.secure.masking_plan import AbortedError, MaskingPlan, ProtocolError
from tfdist.federated.secure.neighbour_graph import neighbours_of

_Questions = tuple[dict[str, Any], dict[str, dict[str, Any]]]  # what all clients are told, and each of them alone


class MaskingServer:
    """The server's side of one secure sum.

    Args:
        plan: the plan, which the clients build as well.
        roster: the public signing key of every known client.
    """

    def __init__(self, plan: MaskingPlan, roster: Mapping[str, bytes]) -> None:
        self.plan = plan
        self.phase = Phase.ADVERTISE
        self.awaited: frozenset[str] = frozenset(plan.clients)
        self._roster = roster
        self._answers: dict[str, Any] = {}  # of this phase
        self._adverts: dict[str, bytes] = {}
        self._keys = b""
        self._graph: dict[str, tuple[str, ...]] = {}
        self._sharers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._lost: tuple[str, ...] = ()
        self._sum: Words = np.zeros(plan.length, word_type(plan.bits))
        self._told: dict[str, Any] = {}  # the part of this phase's questions that is the same for all clients
        self._own: dict[str, dict[str, Any]] = {}  # the rest of each client's question

    def state(self) -> dict[str, Any]:
        """Return the state at the beginning of this phase, for `restore`, as numbers, texts, bytes and arrays.

        The plan, the roster and the answers of this phase are not in it.
        """
        return {
            "phase": int(self.phase),
            "adverts": self._adverts,
            "sharers": list(self._sharers),
            "survivors": list(self._survivors),
            "lost": list(self._lost),
            "sum": self._sum,
            "told": self._told,
            "own": self._own,
        }

    def added(self) -> dict[str, Any]:
        """Return what vectors have changed since the beginning of their phase, which is little beside `state`."""
        return {"answered": list(self._answers), "sum": self._sum}

    @classmethod
    def restore(
        cls, plan: MaskingPlan, roster: Mapping[str, bytes], state: Mapping[str, Any], added: Mapping[str, Any] | None
    ) -> "MaskingServer":
        """Return the server that `state` describes, with the vectors of `added`, if there are some."""
        server = cls(plan, roster)
        server.phase, server._adverts = Phase(state["phase"]), dict(state["adverts"])
        server._told, server._own = state["told"], state["own"]
        server._sharers, server._survivors = tuple(state["sharers"]), tuple(state["survivors"])
        server._lost, server._sum = tuple(state["lost"]), np.array((added or state)["sum"])
        server._answers = dict.fromkeys(() if added is None else added["answered"], True)
        server.awaited = frozenset(server._own) - server.answered
        server._set_graph()
        return server

    @property
    def asked(self) -> tuple[str, ...]:
        """The clients that have a question in this phase."""
        return tuple(self._own)

    def question(self, client: str) -> dict[str, Any]:
        """Return what a client needs for its answer of this phase; clients share parts of it."""
        return {**self._told, **self._own[client]}

    @property
    def answered(self) -> frozenset[str]:
        """The clients whose answers of this phase have been taken."""
        return frozenset(self._answers)

    @property
    def is_enough(self) -> bool:
        """Whether the answers of this phase suffice for its end."""
        hidden = (*self._survivors, *self._lost) if self.phase == Phase.REVEAL else ()
        needed = self.plan.degree.shares
        return len(self._answers) >= self.plan.threshold and all(
            len(self._shares_of(name)) >= needed for name in hidden
        )

    @property
    def survivors(self) -> tuple[str, ...]:
        """The clients whose vectors are in the sum."""
        return self._survivors

    def receive(self, client: str, phase: Phase, answer: object) -> None:
        """Take an answer; if it cannot be right, refuse it and stop waiting for its client."""
        if phase != self.phase or client not in self.awaited:
            raise ProtocolError(
                f"client {client} answered {phase.name.lower()} at {self.phase.name.lower()}; it came too late or "
                "twice, or was not asked for.",
                name=client,
                received=phase.name.lower(),
            )
        self.awaited -= {client}
        self._answers[client] = self._checked(client, answer)

    def drop(self, client: str) -> None:
        """Stop waiting for this client."""
        self.awaited -= {client}

    def advance(self) -> dict[str, dict[str, Any]]:
        """End the phase; return for each client that still takes part the data for its next answer."""
        present = tuple(sorted(self._answers))
        if len(present) < self.plan.threshold:
            raise AbortedError(
                f"{len(present)} of {len(self.plan.clients)} clients answered {self.phase.name.lower()}; a secure sum "
                f"needs {self.plan.threshold}. The sum stays hidden. Wait for more clients, or "
                "allow a longer deadline.",
                name="threshold",
                received=len(present),
            )
        end = {
            Phase.ADVERTISE: self._end_of_adverts,
            Phase.SHARE: self._end_of_shares,
            Phase.UPLOAD: self._end_of_uploads,
            Phase.CONFIRM: self._end_of_confirmations,
            Phase.REVEAL: self._end_of_reveals,
        }[self.phase]
        self._told, self._own = end(present)
        self.phase = Phase(self.phase + 1)
        self._answers, self.awaited = {}, frozenset(self._own)
        return {client: self.question(client) for client in self._own}

    def result(self) -> Words:
        """Return the sum of the vectors of `survivors`, when the last phase is over."""
        if self.phase != Phase.DONE:
            raise ProtocolError(f"the sum is at {self.phase.name.lower()}, and there is no result before the end.")
        return self._sum

    def _checked(self, client: str, answer: object) -> Any:
        if self.phase == Phase.ADVERTISE:
            advert = masking_plan.checked_advert(self.plan, self._roster, client, answer)
            masking_plan.check_points(client, advert)
            return advert
        if self.phase == Phase.SHARE:
            boxes = self._checked_map(client, answer, set(self._graph[client]) - {client})
            return {
                name: masking_plan.checked_bytes(client, box, masking_plan.BOX_BYTES) for name, box in boxes.items()
            }
        if self.phase == Phase.UPLOAD:
            self._add(client, answer)
            return True
        if self.phase == Phase.CONFIRM:
            signature = masking_plan.checked_bytes(client, answer, masking_plan.SIGNATURE_BYTES)
            said = masking_plan.outcome_statement(self.plan, self._keys, self._survivors, self._lost)
            masking_plan.check_signature(self._roster, client, signature, said)
            return signature
        shares = self._checked_map(client, answer, set(self._graph[client]) & set(self._sharers))
        return {name: masking_plan.checked_bytes(client, share, KEY_BYTES) for name, share in shares.items()}

    def _checked_map(self, client: str, answer: object, expected: set[str]) -> dict[str, object]:
        found = masking_plan.checked_map(answer)
        if set(found) != expected:
            raise ProtocolError(f"client {client} answered for other clients than its neighbours.", name=client)
        return dict(found)

    def _add(self, client: str, words: object) -> None:
        expected = word_type(self.plan.bits)
        if not isinstance(words, np.ndarray) or words.dtype != expected or words.shape != self._sum.shape:
            got = f"{words.dtype} {words.shape}" if isinstance(words, np.ndarray) else type(words).__name__
            raise ProtocolError(
                f"client {client} uploaded {got}; the vector has {self.plan.length} words of {self.plan.bits} bits.",
                name=client,
                received=got,
            )
        self._sum += words

    def _end_of_adverts(self, present: tuple[str, ...]) -> _Questions:
        self._adverts = {name: self._answers[name] for name in present}
        self._set_graph()
        return {"adverts": self._adverts}, {name: {} for name in present}

    def _set_graph(self) -> None:
        self._keys = masking_plan.keys_digest(self.plan, self._adverts)
        self._graph = neighbours_of(sorted(self._adverts), self.plan.degree.neighbours, self._keys)

    def _end_of_shares(self, present: tuple[str, ...]) -> _Questions:
        self._sharers = present
        boxes: dict[str, dict[str, object]] = {name: {} for name in present}
        for sender in present:
            for receiver, box in self._answers[sender].items():
                if receiver in boxes:
                    boxes[receiver][sender] = box
        return {"sharers": list(present)}, {name: {"boxes": boxes[name]} for name in present}

    def _end_of_uploads(self, present: tuple[str, ...]) -> _Questions:
        self._survivors = present
        self._lost = tuple(name for name in self._sharers if name not in present)
        return {"survivors": list(present), "lost": list(self._lost)}, {name: {} for name in present}

    def _end_of_confirmations(self, present: tuple[str, ...]) -> _Questions:
        return {"confirmations": self._answers}, {name: {} for name in present}

    def _end_of_reveals(self, present: tuple[str, ...]) -> _Questions:
        del present
        added, removed = list[bytes](), [self_key(self._seed_of(name), self.plan, name) for name in self._survivors]
        for name in self._lost:
            private = self._mask_secret_of(name)
            for peer in self._graph[name]:
                if peer in self._survivors:
                    key = pair_key(private, self._adverts[peer][KEY_BYTES : 2 * KEY_BYTES], self.plan, name, peer)
                    (removed if peer < name else added).append(key)  # the opposite of what the peer has done
        apply_masks(self._sum, added=added, removed=removed)
        return {}, {}

    def _seed_of(self, name: str) -> bytes:
        seal = self._adverts[name][2 * KEY_BYTES : 3 * KEY_BYTES]
        return self._recovered(name, lambda seed: hashlib.sha256(seed).digest() == seal)

    def _mask_secret_of(self, name: str) -> bytes:
        public = self._adverts[name][KEY_BYTES : 2 * KEY_BYTES]
        return self._recovered(name, lambda private: public_key(private) == public)

    def _recovered(self, name: str, fits: Callable[[bytes], bool]) -> bytes:
        """Return a client's secret. If one share is wrong, some group of as many shares as needed is without it."""
        needed, shares = self.plan.degree.shares, self._shares_of(name)
        for start in range(len(shares) if len(shares) >= needed else 0):
            secret = shamir.combine(dict((shares[start:] + shares[:start])[:needed]))
            if fits(secret):
                return secret
        raise AbortedError(
            f"{len(shares)} neighbours of client {name} sent shares of its mask, and {needed} right ones are needed. "
            "The sum stays hidden. Try again in another round.",
            name=name,
            received=len(shares),
        )

    def _shares_of(self, name: str) -> list[tuple[int, bytes]]:
        """Return the revealed shares of a client's secret, with their places."""
        holders = enumerate(self._graph[name], 1)
        return [(place, self._answers[holder][name]) for place, holder in holders if holder in self._answers]
