"""Clients that lie, for drills: known attacks on federated averaging, played in a simulation.

The liars of a round train as all others do, know every update, and agree on what they send.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.federated.aggregation import Aggregation, clipped_by
from tfdist.federated.client_update import Arrays, Update
from tfdist.federated.clients.client_data import Local, LocalArrays
from tfdist.federated.rounds.round_machine import chosen

Attack = Literal["sign-flip", "alie", "ipm", "mimic", "label-flip"]
#: attack -> its usual strength; None where it has none
ATTACKS: dict[str, float | None] = {"sign-flip": 1.0, "alie": 1.5, "ipm": 0.5, "mimic": None, "label-flip": None}


@dataclass(frozen=True)
class Liars:
    """A fraction of a simulation's clients that lie, to see whether training survives it.

    The liars know all updates of a round and agree with each other:

    - "sign-flip": -strength times the update of their own training; 1 by default.
    - "alie": the mean of honest updates minus strength times their standard deviation; 1.5 by default.
    - "ipm": -strength times the mean of honest updates; 0.5 by default.
    - "mimic": the update of one honest client, the farthest along the direction in which the updates differ most.
    - "label-flip": honest training on wrong labels, the last of n in place of the first and so on.

    Args:
        part: the fraction of all clients that lie; the clients' names decide which ones.
        attack: the attack, one of those above.
        strength: the strength of the attack; None: its default.

    Raises:
        ConfigError: part is not between 0 and 1, the attack is unknown, or it has no strength.

    Example:
        >>> Liars(0.2, "sign-flip", strength=10).part
        0.2

    Sources: M. Baruch et al., "A Little Is Enough", 2019. C. Xie et al., "Fall of Empires" (IPM), 2019. S. P.
    Karimireddy et al., "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing" (mimic), 2022.
    """

    part: float
    attack: Attack
    strength: float | None = None

    def __post_init__(self) -> None:
        validation.number("part", self.part, above=0, maximum=1)
        validation.one_of("attack", self.attack, tuple(ATTACKS))
        if self.strength is None:
            return
        validation.number("strength", self.strength, above=0)
        if ATTACKS[self.attack] is None:
            raise ConfigError(
                f"strength is {self.strength:g}, and {self.attack} has none. Leave it out.",
                name="strength",
                received=self.strength,
            )


def read(text: str) -> Liars:
    """Return the liars that a text such as ``0.2:alie`` or ``0.2:sign-flip:10`` describes."""
    part, *rest = text.split(":")
    try:
        strength = float(rest[1]) if len(rest) > 1 else None
        if not 1 <= len(rest) <= 2:
            raise ValueError
        return Liars(float(part), rest[0], strength)  # type: ignore[arg-type]  # checked there
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"liars are {text!r}; they must be PART:ATTACK or PART:ATTACK:STRENGTH, such as 0.2:alie.",
            name="liars",
            received=text,
        ) from None


def among(liars: Liars, clients: Sequence[str]) -> frozenset[str]:
    """Return the names of the clients that lie, which depend only on the names."""
    return frozenset(chosen(clients, max(1, round(liars.part * len(clients))), "liars"))


def taught(liars: Liars, data: Local, outputs: object) -> Local:
    """Return a liar's training data: its own, or with wrong labels. ``outputs`` is the model's output shape."""
    if liars.attack != "label-flip":
        return data
    classes = outputs[-1] if isinstance(outputs, tuple) else None
    x, y, *rest = data.nest if isinstance(data, LocalArrays) else (None, None)
    if not isinstance(outputs, tuple) or not isinstance(classes, int) or not isinstance(y, np.ndarray):
        raise ConfigError(
            "label-flip needs a model with one output, and clients whose data are arrays (x, y). Take another attack.",
            name="attack",
            received=liars.attack,
        )
    is_one_hot = y.ndim == len(outputs) and classes > 1
    wrong = y[..., ::-1] if is_one_hot else (max(classes, 2) - 1 - y).astype(y.dtype)
    return LocalArrays((x, wrong, *rest), data.examples)


def lies(liars: Liars, honest: Sequence[Arrays], own: Sequence[Arrays]) -> list[Arrays]:
    """Return the updates that liars send, whose training made ``own``, when the others send ``honest``."""
    strength = float(liars.strength or ATTACKS[liars.attack] or 0)
    known = honest or own  # all of a round lie: they know what an honest one would send
    match liars.attack:
        case "label-flip":
            return list(own)
        case "sign-flip":
            return [{name: -strength * array for name, array in one.items()} for one in own]
        case "mimic":
            return [known[_farthest(known)]] * len(own)
        case "ipm":
            return [_of_all(known, lambda rows: -strength * rows.mean(0))] * len(own)
        case "alie":
            return [_of_all(known, lambda rows: rows.mean(0) - strength * rows.std(0))] * len(own)


class Lie(Update):
    """The honest update of a client that is going to lie."""


class Deceived:
    """An aggregation that gets lies in place of each `Lie`."""

    def __init__(self, aggregation: Aggregation, liars: Liars) -> None:
        self._aggregation, self._liars = aggregation, liars
        self._updates = list[tuple[Update, float]]()

    def add(self, update: Update, weight: float) -> None:
        self._updates.append((update, weight))

    def result(self) -> Arrays:
        honest = [one.arrays for one, _ in self._updates if not isinstance(one, Lie)]
        own = [one.arrays for one, _ in self._updates if isinstance(one, Lie)]
        told = iter(lies(self._liars, honest, own) if own else ())
        for update, weight in self._updates:
            sent = Update(next(told), update.examples) if isinstance(update, Lie) else update
            self._aggregation.add(sent, weight)
        return self._aggregation.result()

    @property
    def clipped(self) -> int | None:
        return clipped_by(self._aggregation)


def _of_all(updates: Sequence[Arrays], made: Callable[[NDArray[Any]], NDArray[Any]]) -> Arrays:
    return {
        name: made(np.stack([one[name] for one in updates]).astype(np.float64)).astype(array.dtype)
        for name, array in updates[0].items()
    }


def _farthest(updates: Sequence[Arrays]) -> int:
    """Return the index of the update that is farthest from the mean along the direction of the largest differences."""
    products = np.zeros((len(updates), len(updates)))
    for name in updates[0]:
        rows = np.stack([one[name].ravel() for one in updates]).astype(np.float64)
        rows -= rows.mean(0)
        products += rows @ rows.T
    return int(np.argmax(np.abs(np.linalg.eigh(products)[1][:, -1])))
