"""The server's secure sums in the rounds of a run: one for each attempt, kept on the disk until it is complete.

Selected clients agree on keys before they train, so an update leaves its client under masks. The state is saved at
every phase after the clients are ready, and the sum with every vector: a server that is killed resumes the same sum. It
asks again for signatures and shares, and clients give the same answers.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError
from tfdist.federated.client_privacy import clipped
from tfdist.federated.secure.fixed_point import FixedPoint
from tfdist.federated.secure.masking_client import MaskingClient, Phase
from tfdist.federated.secure.masking_plan import AbortedError, MaskingPlan, ProtocolError
from tfdist.federated.secure.masking_server import MaskingServer
from tfdist.federated.secure.noisy_words import NoisyWords
from tfdist.federated.secure_sums import SecureSums, VectorLayout, plan_of
from tfdist.federated.transport.array_frames import FrameError, pack, unpack_whole
from tfdist.storage.directory import storage

FILE, ADDED, REVEALED = "secure_sum", "secure_sum_so_far", "last_revealed.json"
QUESTIONS = {Phase.ADVERTISE: "keys", Phase.SHARE: "shares", Phase.CONFIRM: "confirm", Phase.REVEAL: "reveal"}
Asks = dict[str, dict[str, Any]]  # client -> question


class SecureRounds:
    """The secure sum of the current attempt."""

    def __init__(
        self, sums: SecureSums, code: FixedPoint, layout: VectorLayout, roster: Mapping[str, bytes], folder: Path | None
    ) -> None:
        self._sums, self._code, self._layout, self._roster = sums, code, layout, roster
        self._folder = folder
        self._masking: MaskingServer | None = None
        self.turn = (-1, -1)

    @property
    def phase(self) -> Phase:
        """The current phase; DONE if there is no sum."""
        return Phase.DONE if self._masking is None else self._masking.phase

    @property
    def awaited(self) -> frozenset[str]:
        """The clients whose answers in this phase are still awaited."""
        return frozenset() if self._masking is None else self._masking.awaited

    @property
    def is_enough(self) -> bool:
        """Whether the phase can end without the clients that are awaited."""
        return self._masking is not None and self._masking.is_enough

    @property
    def is_revealed(self) -> bool:
        """Whether clients may have revealed shares, after which they take part in no other sum of the round."""
        return self._masking is not None and self.phase >= Phase.REVEAL

    def begin(self, turn: tuple[int, int], clients: Iterable[str]) -> Asks:
        """Begin the sum of an attempt."""
        plan = plan_of(self._sums, clients, session=secrets.token_bytes(32), length=self._layout.words)
        self._masking, self.turn = MaskingServer(plan, self._roster), turn
        return self._asked({client: {"clients": list(plan.clients)} for client in plan.clients})

    def boxes_of(self, client: str) -> dict[str, Any] | None:
        """Return the data that a client needs to mask its update; None if it is not part of the sum."""
        if self._masking is None or self.phase != Phase.UPLOAD or client not in self._masking.asked:
            return None
        return {"session": self._masking.plan.session, **self._masking.question(client)}

    def has_upload(self, client: str) -> bool:
        """Return whether the client's vector is in the sum, so that it need not be sent again after a restart."""
        return self.boxes_of(client) is not None and self._masking is not None and client in self._masking.answered

    def is_of(self, clients: Iterable[str]) -> bool:
        """Return whether the vectors in the sum are those of exactly these clients; True if there is no sum."""
        return self._masking is None or self._masking.answered == frozenset(clients)

    def receive(self, client: str, question: str, answer: dict[str, Any]) -> None:
        """Take an answer; raise ProtocolError if it cannot be right."""
        masking = self._masking
        phase = next((phase for phase, name in QUESTIONS.items() if name == question), Phase.UPLOAD)
        if masking is None or answer.get("session") != masking.plan.session:
            raise ProtocolError(f"client {client} answers for another sum.", name=client)
        masking.receive(client, phase, answer.get("answer"))
        if phase == Phase.UPLOAD:
            self._keep(ADDED, masking.added())

    def drop(self, client: str) -> None:
        """Stop waiting for this client."""
        if self._masking is not None:
            self._masking.drop(client)

    def advance(self) -> Asks:
        """End a phase and return what to ask next; raise AbortedError if too few clients are left."""
        if self._masking is None:
            raise AbortedError("the masked updates are lost: the server was killed, and began again without a folder.")
        send = self._masking.advance()
        if self.phase >= Phase.UPLOAD:
            self._keep(FILE, {"clients": list(self._masking.plan.clients), "masking": self._masking.state()})
        return self._asked(send)

    @property
    def is_complete(self) -> bool:
        """Whether there is a sum that can be read."""
        return self._masking is not None and self._masking.phase == Phase.DONE

    def ready(self) -> tuple[str, ...]:
        """Return the clients that can mask their updates."""
        return self._masking.asked if self._masking is not None and self.phase == Phase.UPLOAD else ()

    def mean(self, clients: Iterable[str], weight: float) -> dict[str, NDArray[np.float64]]:
        """Return the weighted mean of the clients' updates, when the sum is complete."""
        assert self._masking is not None
        if set(clients) != set(self._masking.survivors):
            raise AbortedError("the sum has other clients than the round; it is not used.")
        return self._layout.parts(self._code.decode(self._masking.result()) / weight)

    @property
    def clipped_values(self) -> int:
        """The number of values that the clients of the complete sum have clipped, as they report."""
        assert self._masking is not None
        return int(self._masking.result()[-1])

    def forget(self) -> None:
        """End the sum; nothing of it is revealed any more."""
        self._masking = None
        if self._folder is not None:
            for name in (FILE, ADDED):
                (self._folder / name).unlink(missing_ok=True)

    def resume(self, turn: tuple[int, int]) -> Asks:
        """Resume the sum of this attempt from the disk; return what has to be asked again."""
        kept = self._kept(FILE)
        if kept is None or tuple(kept["turn"]) != turn:
            return {}
        plan = plan_of(self._sums, kept["clients"], session=kept["session"], length=self._layout.words)
        added = self._kept(ADDED) if kept["masking"]["phase"] == Phase.UPLOAD else None
        if added is not None and added["session"] != plan.session:
            added = None  # of the attempt before
        self._masking = MaskingServer.restore(plan, self._roster, kept["masking"], added)
        self.turn = turn
        return self._asked({client: self._masking.question(client) for client in self._masking.asked})

    def _asked(self, send: Asks) -> Asks:
        assert self._masking is not None
        session, question = self._masking.plan.session, QUESTIONS.get(self._masking.phase)
        if question is None:
            return {}
        return {client: {"what": question, "session": session, **ask} for client, ask in send.items()}

    def _keep(self, name: str, content: dict[str, Any]) -> None:
        if self._folder is None or self._masking is None:
            return
        kept = {"turn": list(self.turn), "session": self._masking.plan.session, **content}
        # once clients reveal, they refuse another sum of the round: this one must outlive the power
        with storage(self._folder, durable=self.phase > Phase.UPLOAD).create(name) as file:
            for buffer in pack(kept):
                file.write(buffer)

    def _kept(self, name: str) -> dict[str, Any] | None:
        if self._folder is None or not (self._folder / name).exists():
            return None
        try:
            return unpack_whole((self._folder / name).read_bytes())
        except FrameError:  # the power went before anything was revealed
            return None


class SecureMember:
    """A client's secure sums: one at a time, and at most one for each round that is revealed.

    ``noise`` is the noise that the client adds to its part of a sum, for privacy.
    """

    def __init__(
        self,
        sums: SecureSums,
        code: FixedPoint,
        layout: VectorLayout,
        name: str,
        identity: Any,
        roster: Mapping[str, bytes],
        folder: Path,
        *,
        noise: Callable[[MaskingPlan], NoisyWords] | None = None,
    ) -> None:
        self._sums, self._code, self._layout, self._noise = sums, code, layout, noise
        self._name, self._identity, self._roster = name, identity, roster
        self._place = storage(folder)
        self._client: MaskingClient | None = None
        self._run, self._round = "", -1
        self.clipping = ""

    def answer(self, message: Mapping[str, Any]) -> Any:
        """Return the answer to a question of the server."""
        question, session = message.get("what"), message.get("session")
        if question == "keys":
            return self._begin(message, session)
        client = self._of(session)
        if question == "shares":
            return client.share(message.get("adverts"))
        if question == "confirm":
            return client.confirm(message.get("survivors"), message.get("lost"))
        if question == "reveal":
            with self._place.create(REVEALED) as file:  # on the disk before anything is said
                file.write(json.dumps({"run": self._run, "round": self._round}).encode())
            return client.reveal(message.get("confirmations"))
        raise ProtocolError(f"the server asks {question!r}, which no secure sum has.", name=self._name)

    def masked(self, given: object, arrays: Mapping[str, NDArray[Any]], weight: float) -> Any:
        """Return an update under masks; `clipping` says how much of it was clipped."""
        if not isinstance(given, Mapping):
            raise ProtocolError("the server asks for an update without masks.", name=self._name)
        client = self._of(given.get("session"))
        noise, is_clipped = None if self._noise is None else self._noise(client.plan), False
        if noise is not None:
            arrays, is_clipped = clipped(arrays, noise.clip)
        try:
            words, count = self._code.encode(self._layout.joined(arrays), int(weight))
        except ConfigError as error:  # the round goes on without this client, and the next one with it
            raise ProtocolError(str(error), name=self._name) from error
        self.clipping = f", {count:,} of {len(words):,} values clipped" if count else ""
        if noise is not None:
            self.clipping = f", clipped to the norm {noise.clip:.3g}" if is_clipped else ""
            words = noise.added(words, np.random.Generator(np.random.Philox(key=secrets.randbits(128))))
            count = 0  # noise hides no exact count
        most = ((1 << self._code.bits) - 1) // self._code.clients
        words = np.append(words, words.dtype.type(min(count, most)))
        return client.upload(given.get("sharers"), given.get("boxes"), words)

    def _begin(self, message: Mapping[str, Any], session: object) -> bytes:
        clients, run, turn = message.get("clients"), message.get("run"), message.get("round")
        if not isinstance(session, bytes) or len(session) < 16 or type(turn) is not int or not isinstance(run, str):
            raise ProtocolError("the server begins a sum without a session or a round.", name=self._name)
        if (
            not isinstance(clients, list)
            or not all(isinstance(one, str) for one in clients)
            or self._name not in clients
        ):
            raise ProtocolError("the server begins a sum without this client.", name=self._name)
        last_run, last = self._last_revealed()
        if run == last_run and turn <= last:
            raise ProtocolError(
                f"the server begins a sum of round {turn}, and one of round {last} was revealed already; the "
                "difference of two sums could be a single update.",
                name=self._name,
                received=turn,
            )
        if len(clients) > self._code.clients:
            raise ProtocolError(
                f"the server begins a sum of {len(clients)} clients; its words have room for {self._code.clients}.",
                name=self._name,
            )
        plan = plan_of(self._sums, clients, session=session, length=self._layout.words)
        self._client = MaskingClient(plan, self._name, self._identity, self._roster)
        self._run, self._round = run, turn
        return self._client.advertise()

    def _last_revealed(self) -> tuple[str, int]:
        if REVEALED not in self._place.names():
            return "", -1
        found = json.loads(self._place.read(REVEALED))
        return str(found["run"]), int(found["round"])

    def _of(self, session: object) -> MaskingClient:
        if self._client is None or session != self._client.plan.session:
            raise ProtocolError("the server continues a sum that this client has not begun.", name=self._name)
        return self._client
