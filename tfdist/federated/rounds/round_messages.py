"""The events that a driver passes to the state machine of rounds, and the actions that it returns; both as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.errors import CorruptDataError


@dataclass(frozen=True)
class _OfAttempt:
    round: int
    attempt: int


# --- events -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Joined:
    """A client is connected, for the first time or again."""

    client: str


@dataclass(frozen=True)
class Left:
    """A client is gone; it may join again."""

    client: str


@dataclass(frozen=True)
class Configured(_OfAttempt):
    """These of the clients that `Configure` named are ready to train."""

    clients: tuple[str, ...]


@dataclass(frozen=True)
class Trained(_OfAttempt):
    """A client's update has arrived, and the driver keeps it."""

    client: str
    examples: int


@dataclass(frozen=True)
class ClientFailed(_OfAttempt):
    """A client reports that it cannot train or evaluate."""

    client: str
    reason: str


@dataclass(frozen=True)
class Aggregated(_OfAttempt):
    """The weights of the next round are computed, and the driver keeps them."""


@dataclass(frozen=True)
class AggregationFailed(_OfAttempt):
    """The updates could not be aggregated, for instance because too few clients confirmed a secure sum."""

    reason: str


@dataclass(frozen=True)
class SumHidden(_OfAttempt):
    """Too few clients unmasked a secure sum; the others reveal no second one, so the round ends without an update."""

    reason: str


@dataclass(frozen=True)
class Evaluated(_OfAttempt):
    """A client has evaluated the new weights on its own data."""

    client: str
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluatedCentrally(_OfAttempt):
    """The server has evaluated the new weights on its data."""

    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeadlinePassed(_OfAttempt):
    """The time of a `SetDeadline` is over."""

    phase: str


@dataclass(frozen=True)
class Restarted:
    """The server runs again after it ended; no client is connected."""


Event = (
    Joined
    | Left
    | Configured
    | Trained
    | ClientFailed
    | Aggregated
    | AggregationFailed
    | SumHidden
    | Evaluated
    | EvaluatedCentrally
    | DeadlinePassed
    | Restarted
)


# --- actions ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SetDeadline(_OfAttempt):
    """Send `DeadlinePassed` with the same fields after this number of seconds; it replaces the previous deadline."""

    phase: str
    seconds: float


@dataclass(frozen=True)
class Configure(_OfAttempt):
    """Get these clients ready (for instance, let them agree on keys), then send `Configured`."""

    clients: tuple[str, ...]


@dataclass(frozen=True)
class Train(_OfAttempt):
    """Send the weights of the round to this client; it may have had them before."""

    client: str


@dataclass(frozen=True)
class Cancel(_OfAttempt):
    """Tell this client that its update is not needed any more."""

    client: str


@dataclass(frozen=True)
class Aggregate(_OfAttempt):
    """Aggregate the updates of these clients, in this order, then send how that ended.

    That is `Aggregated`, `AggregationFailed` or `SumHidden`.
    """

    clients: tuple[str, ...]


@dataclass(frozen=True)
class Discard(_OfAttempt):
    """Forget the updates of this attempt: there are too few."""

    reason: str


@dataclass(frozen=True)
class Evaluate(_OfAttempt):
    """Send the new weights to this client, which evaluates them."""

    client: str


@dataclass(frozen=True)
class EvaluateCentrally(_OfAttempt):
    """Evaluate the new weights here, then send `EvaluatedCentrally`."""


@dataclass(frozen=True)
class EndRound(_OfAttempt):
    """A round is done: record it, and keep the state."""

    selected: tuple[str, ...]
    trained: Mapping[str, int]  # client -> examples, in the order of selection
    metrics: Mapping[str, float]  # of the evaluation; empty where there was none


@dataclass(frozen=True)
class Ignored:
    """An event was ignored; the reason is for a log, and for the client."""

    client: str
    reason: str


@dataclass(frozen=True)
class Stop:
    """The run is over: all rounds are done, or the error says why it cannot continue."""

    error: str = ""


Action = (
    SetDeadline
    | Configure
    | Train
    | Cancel
    | Aggregate
    | Discard
    | Evaluate
    | EvaluateCentrally
    | EndRound
    | Ignored
    | Stop
)

_EVENTS: dict[str, type[Any]] = {one.__name__: one for one in Event.__args__}
_KINDS: dict[Any, type | tuple[type, ...]] = {int: int, str: str, tuple[str, ...]: list, Mapping[str, float]: dict}


def to_json(event: Event) -> str:
    """Return an event as one line of a journal.

    Example:
        >>> to_json(Joined("berlin"))
        '{"event": "Joined", "client": "berlin"}'
    """
    return json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)})


def from_json(text: str | bytes) -> Event:
    """Return the event of a line that `to_json` wrote.

    Example:
        >>> from_json('{"event": "Joined", "client": "berlin"}')
        Joined(client='berlin')
    """
    try:
        found = json.loads(text)
        kind = _EVENTS[found.pop("event")]
        fields = {one.name: one.type for one in dataclasses.fields(kind)}
        if fields.keys() != found.keys():
            raise ValueError(f"it has the fields {sorted(found)} and not {sorted(fields)}")
        for name, type_ in fields.items():
            if type(found[name]) is not _KINDS[type_]:
                raise ValueError(f"its {name} is {found[name]!r}")
        event: Event = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in found.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"an event of a journal cannot be read: {error}.", received=str(text)[:200]) from error
    return event
