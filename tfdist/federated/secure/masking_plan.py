"""The plan of a secure sum, the statements that its clients sign, and the errors of both sides."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tfdist import validation
from tfdist.errors import ConfigError, TfdistError
from tfdist.federated.secure.mask_stream import KEY_BYTES, agreed_secret
from tfdist.federated.secure.neighbour_graph import Degree, majority, safe_degree

FEWEST_CLIENTS = 3  # of two, each would learn the other's vector from the sum
SIGNATURE_BYTES = 64
ADVERT_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
BOX_BYTES = 2 * KEY_BYTES + 16  # two shares, and the tag that seals them
_ANY_PRIVATE = b"\1" * KEY_BYTES
_PROTOCOL = b"tfdist secure sum 1"


class ProtocolError(TfdistError, RuntimeError):
    """The error of a message that breaks the protocol: forged, replayed, swapped, late or excessive; `name` sent it."""


class AbortedError(TfdistError, RuntimeError):
    """The error of a secure sum that ended without a result, and revealed nothing."""


@dataclass(frozen=True, kw_only=True)
class MaskingPlan:
    """The plan of one secure sum. Both sides build it from their own settings and the server's announcement."""

    session: bytes  # random bytes that no other sum has
    clients: tuple[str, ...]  # the names of the clients that are asked, in order
    length: int  # the number of words of a vector
    bits: int  # the bits of a word, 32 or 64
    threshold: int  # the least number of clients whose sum is revealed
    degree: Degree  # the number of neighbours of a client, and the number of shares that recover a secret

    @classmethod
    def of(
        cls,
        clients: Iterable[str],
        *,
        session: bytes,
        length: int,
        bits: int = 32,
        threshold: int | None = None,
        colluding: float | None = 0.1,
        lost: float = 0.1,
    ) -> "MaskingPlan":
        """Return the plan for these clients; more than two thirds must stay unless ``threshold`` says otherwise."""
        names = tuple(sorted(clients))
        count = len(names)
        if count < FEWEST_CLIENTS or len(set(names)) < count:
            raise ConfigError(
                f"a secure sum of {count} clients ({', '.join(names)}); it takes at least {FEWEST_CLIENTS} unlike "
                "ones. Of two, each would learn the other's values. Wait for more clients.",
                name="clients",
                received=count,
            )
        fewest = count // 2 + 1
        chosen = majority(count) if threshold is None else threshold
        validation.integer("threshold", chosen, minimum=fewest, maximum=count)
        degree = safe_degree(count, colluding=colluding, lost=lost)
        if degree.neighbours == count - 1:
            degree = Degree(count - 1, chosen)
        validation.integer("length", length, minimum=1)
        validation.one_of("bits", bits, (32, 64))
        return cls(session=session, clients=names, length=length, bits=bits, threshold=chosen, degree=degree)

    @cached_property
    def digest(self) -> bytes:
        """The digest to which every key and signature of this sum is bound."""
        numbers = (self.length, self.bits, self.threshold, self.degree.neighbours, self.degree.shares)
        return statement(self.session, *self.clients, *(str(number) for number in numbers))


def statement(*parts: bytes | str) -> bytes:
    """Return a digest of parts with their lengths, so that no two lists of parts have the same digest."""
    found = hashlib.sha256(_PROTOCOL)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big") + data)
    return found.digest()


def advert_statement(plan: MaskingPlan, client: str, advert: bytes) -> bytes:
    """Return the statement that a client signs about its keys, which precede the signature in its advert."""
    return statement(plan.digest, "keys", client, advert[: 3 * KEY_BYTES])


def outcome_statement(plan: MaskingPlan, keys: bytes, survivors: Sequence[str], lost: Sequence[str]) -> bytes:
    """Return a client's statement about a sum: all keys, the clients in it, and those whose masks must be removed."""
    lists = (str(len(survivors)), *survivors, str(len(lost)), *lost)
    return statement(plan.digest, "outcome", keys, *lists)


def keys_digest(plan: MaskingPlan, adverts: Mapping[str, bytes]) -> bytes:
    """Return the digest of all adverts: clients that received other adverts sign another outcome."""
    return statement(plan.digest, "all keys", *(part for name in sorted(adverts) for part in (name, adverts[name])))


def check_signature(roster: Mapping[str, bytes], client: str, signature: bytes, said: bytes) -> None:
    """Refuse a signature that the client of this name has not made."""
    if client not in roster:
        raise ProtocolError(f"client {client} is not on the list of known clients. Add its public key.", name=client)
    try:
        Ed25519PublicKey.from_public_bytes(roster[client]).verify(signature, said)
    except InvalidSignature:
        raise ProtocolError(
            f"a signature of client {client} does not fit: it was made with another key, for another round, or over "
            "another list. Its sender gets no further answer.",
            name=client,
        ) from None


def checked_advert(plan: MaskingPlan, roster: Mapping[str, bytes], client: str, advert: object) -> bytes:
    """Return an advert of the right length that its client has signed for this sum; refuse any other."""
    if client not in plan.clients:
        raise ProtocolError(f"client {client} is not part of this sum.", name=client)
    found = checked_bytes(client, advert, ADVERT_BYTES)
    check_signature(roster, client, found[3 * KEY_BYTES :], advert_statement(plan, client, found))
    return found


def check_points(client: str, advert: bytes) -> None:
    """Refuse public keys of low order, with which every secret is zero."""
    for start in (0, KEY_BYTES):
        agreed(client, _ANY_PRIVATE, advert[start : start + KEY_BYTES])


def agreed(client: str, private: bytes, public: bytes) -> bytes:
    """Return the secret on which this client's public key and a private key agree."""
    try:
        return agreed_secret(private, public)
    except ValueError:
        raise ProtocolError(f"a public key of client {client} is no key.", name=client) from None


def checked_bytes(client: str, value: object, length: int) -> bytes:
    """Return a value if it is bytes of exactly this length; refuse any other."""
    if not isinstance(value, bytes) or len(value) != length:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise ProtocolError(f"client {client} sent {got} where {length} bytes belong.", name=client, received=got)
    return value


def checked_names(plan: MaskingPlan, names: object) -> tuple[str, ...]:
    """Return names of clients of this sum, in order and each once."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ProtocolError("a list of clients is not a list of names.", received=type(names).__name__)
    found = tuple(sorted(names))
    if len(set(found)) < len(found) or not set(found) <= set(plan.clients):
        raise ProtocolError("a list of clients repeats a name or has one of no client of this sum.", received=found)
    return found


def checked_map(value: object) -> Mapping[str, object]:
    """Return a value if it is a mapping from names; refuse any other."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ProtocolError("a message is not a mapping from the names of clients.", received=type(value).__name__)
    return value
