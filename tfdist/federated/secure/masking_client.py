"""The client's side of a secure sum: five answers in a fixed order, none of which can be taken back.

1. `advertise`: signed public keys, made for this sum alone.
2. `share`: shares of the client's two secrets, sealed for each neighbour. One secret makes its masks with other
   clients, and is needed if the client is lost. The other makes a mask of its own, and is needed if its vector arrived.
3. `upload`: the vector under all these masks, uniform without one of them.
4. `confirm`: a signature over the list of clients that have uploaded, as this client received it.
5. `reveal`: once enough clients have signed the same list, one share for each neighbour, and never both.

A client that refuses a message answers no further one. Nothing here opens a socket or reads a clock.

Source: K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", 2017.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from tfdist.errors import ConfigError
from tfdist.federated.secure import masking_plan, shamir
from tfdist.federated.secure.mask_stream import KEY_BYTES, Words, apply_masks, derived_key, public_key, word_type
from tfdist.federated.secure.masking_plan import MaskingPlan, ProtocolError
from tfdist.federated.secure.neighbour_graph import neighbours_of

_NONCE = bytes(12)  # each key seals one message


class Phase(IntEnum):
    """The step that is expected of a client next."""

    ADVERTISE = 0
    SHARE = 1
    UPLOAD = 2
    CONFIRM = 3
    REVEAL = 4
    DONE = 5
    REFUSED = 6


def pair_key(private: bytes, public: bytes, plan: MaskingPlan, own: str, peer: str) -> bytes:
    """Return the key of the mask that two clients share, from one private key and the peer's public key."""
    secret = masking_plan.agreed(peer, private, public)
    return derived_key(secret, masking_plan.statement(plan.digest, "mask", *sorted((own, peer))))


def self_key(seed: bytes, plan: MaskingPlan, name: str) -> bytes:
    """Return the key of a client's mask of its own."""
    return derived_key(seed, masking_plan.statement(plan.digest, "own mask", name))


class MaskingClient:
    """One client in one secure sum.

    Args:
        plan: the plan, which the client has built itself.
        name: the name of this client.
        identity: the signing key of this client.
        roster: the public signing key of every known client, which does not come from the server.
    """

    def __init__(self, plan: MaskingPlan, name: str, identity: Ed25519PrivateKey, roster: Mapping[str, bytes]) -> None:
        self.plan = plan
        self.name = name
        self.phase = Phase.ADVERTISE
        self._identity = identity
        self._roster = roster
        self._box_secret, self._mask_secret, self._seed = (os.urandom(KEY_BYTES) for _ in range(3))
        self._advert = b""
        self._adverts: dict[str, bytes] = {}
        self._graph: dict[str, tuple[str, ...]] = {}
        self._sharers: tuple[str, ...] = ()
        self._shares: dict[str, bytes] = {}  # the two shares of each neighbour that has shared
        self._survivors: tuple[str, ...] = ()
        self._outcome = b""

    def advertise(self) -> bytes:
        """Return public keys and a commitment to the seed of the own mask, signed."""
        with self._answering(Phase.ADVERTISE):
            keys = public_key(self._box_secret) + public_key(self._mask_secret) + hashlib.sha256(self._seed).digest()
            said = masking_plan.advert_statement(self.plan, self.name, keys)
            self._advert = keys + self._identity.sign(said)
            return self._advert

    def share(self, adverts: object) -> dict[str, bytes]:
        """Return for each neighbour a sealed box with a share of each secret."""
        with self._answering(Phase.SHARE):
            self._adverts = self._checked_adverts(adverts)
            keys = masking_plan.keys_digest(self.plan, self._adverts)
            self._graph = neighbours_of(sorted(self._adverts), self.plan.degree.neighbours, keys)
            holders = self._graph[self.name]
            places = range(1, len(holders) + 1)
            parts = [
                shamir.split(secret, threshold=self.plan.degree.shares, places=places)
                for secret in (self._mask_secret, self._seed)
            ]
            boxes = {}
            for place, holder in zip(places, holders, strict=True):
                both = parts[0][place] + parts[1][place]
                if holder == self.name:
                    self._shares[holder] = both
                else:
                    boxes[holder] = self._cipher(self.name, holder).encrypt(_NONCE, both, None)
            return boxes

    def upload(self, sharers: object, boxes: object, words: Words) -> Words:
        """Return the vector under this client's own mask and the masks that it shares with neighbours."""
        if words.dtype != word_type(self.plan.bits) or words.shape != (self.plan.length,):
            raise ConfigError(
                f"the vector has {words.dtype} of shape {words.shape}; this sum takes {self.plan.length} words of "
                f"{self.plan.bits} bits.",
                name="words",
                received=words.shape,
            )
        with self._answering(Phase.UPLOAD):
            self._sharers = masking_plan.checked_names(self.plan, sharers)
            self._require(self.name in self._sharers and set(self._sharers) <= set(self._adverts), "unknown sharers")
            self._require(len(self._sharers) >= self.plan.threshold, "fewer sharers than the threshold")
            peers = [name for name in self._graph[self.name] if name in self._sharers and name != self.name]
            received = masking_plan.checked_map(boxes)
            self._require(set(received) == set(peers), "boxes of other clients than the neighbours that have shared")
            for peer in peers:
                self._shares[peer] = self._opened(peer, received[peer])
            keys = {
                peer: pair_key(self._mask_secret, self._mask_key(peer), self.plan, self.name, peer) for peer in peers
            }
            masked = words.copy()
            apply_masks(
                masked,
                added=[self_key(self._seed, self.plan, self.name), *(keys[p] for p in peers if self.name < p)],
                removed=[keys[p] for p in peers if self.name > p],
            )
            return masked

    def confirm(self, survivors: object, lost: object) -> bytes:
        """Return a signature over which vectors have arrived, and which have not."""
        with self._answering(Phase.CONFIRM):
            self._survivors = masking_plan.checked_names(self.plan, survivors)
            gone = masking_plan.checked_names(self.plan, lost)
            both = set(self._survivors) & set(gone)
            self._require(not both, f"both secrets of {', '.join(sorted(both))} are asked for")
            self._require(
                set(self._survivors) | set(gone) == set(self._sharers), "other clients than those that shared"
            )
            self._require(self.name in self._survivors, "this client is called lost, and is not")
            self._require(len(self._survivors) >= self.plan.threshold, "fewer vectors than the threshold")
            keys = masking_plan.keys_digest(self.plan, self._adverts)
            self._outcome = masking_plan.outcome_statement(self.plan, keys, self._survivors, gone)
            return self._identity.sign(self._outcome)

    def reveal(self, confirmations: object) -> dict[str, bytes]:
        """Return for each neighbour the share that removes its mask, if enough clients have received the same list."""
        with self._answering(Phase.REVEAL):
            signatures = masking_plan.checked_map(confirmations)
            self._require(set(signatures) <= set(self._survivors), "a confirmation of a client without a vector")
            self._require(len(signatures) >= self.plan.threshold, "fewer confirmations than the threshold")
            for name, signature in signatures.items():
                found = masking_plan.checked_bytes(name, signature, masking_plan.SIGNATURE_BYTES)
                masking_plan.check_signature(self._roster, name, found, self._outcome)
            return {
                name: both[KEY_BYTES:] if name in self._survivors else both[:KEY_BYTES]
                for name, both in self._shares.items()
            }

    @contextmanager
    def _answering(self, phase: Phase) -> Iterator[None]:
        if self.phase != phase:
            raise ProtocolError(
                f"client {self.name} is asked to {phase.name.lower()} and is at {self.phase.name.lower()}; each answer "
                "is given once, and in order.",
                name=self.name,
                received=phase.name.lower(),
            )
        self.phase = Phase.REFUSED
        yield
        self.phase = Phase(phase + 1)

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ProtocolError(
                f"client {self.name} refuses what the server asks: {otherwise}. It takes no further part in this sum.",
                name=self.name,
            )

    def _checked_adverts(self, adverts: object) -> dict[str, bytes]:
        given = masking_plan.checked_map(adverts)
        self._require(given.get(self.name) == self._advert, "the list has other keys of this client than it sent")
        self._require(len(given) >= self.plan.threshold, "fewer keys than the threshold")
        found = {
            name: masking_plan.checked_advert(self.plan, self._roster, name, advert) for name, advert in given.items()
        }
        keys = [advert[start : start + KEY_BYTES] for advert in found.values() for start in (0, KEY_BYTES)]
        self._require(len(set(keys)) == len(keys), "two clients have the same key")
        return found

    def _mask_key(self, peer: str) -> bytes:
        return self._adverts[peer][KEY_BYTES : 2 * KEY_BYTES]

    def _cipher(self, sender: str, receiver: str) -> ChaCha20Poly1305:
        """Return the cipher of one direction; another pair of names has another key."""
        peer = receiver if sender == self.name else sender
        secret = masking_plan.agreed(peer, self._box_secret, self._adverts[peer][:KEY_BYTES])
        return ChaCha20Poly1305(derived_key(secret, masking_plan.statement(self.plan.digest, "box", sender, receiver)))

    def _opened(self, peer: str, box: object) -> bytes:
        try:
            sealed = masking_plan.checked_bytes(peer, box, masking_plan.BOX_BYTES)
            return self._cipher(peer, self.name).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            raise ProtocolError(
                f"the box of client {peer} does not open: it was changed, or sealed for another client or sum.",
                name=peer,
            ) from None
