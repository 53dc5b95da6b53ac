"""The graph of clients that mask against each other and hold each other's shares: complete, or random and sparse.

With all pairs, each of n clients makes n - 1 masks. In a random graph of degree k it makes k, and k grows with log(n):
the clients stand on a circle in an order that no client chooses, and each has the k / 2 on either side.

A degree is safe if two things hold, except with a chance of 2^-40 over all clients: no client has as many colluding
neighbours as shares are needed, and the honest clients that stay are connected. A degree is right if, except with a
chance of 2^-20, every client keeps enough neighbours when some are lost. Both chances are exact hypergeometric tails
times the number of clients.

Source: J. H. Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", 2020.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, comb

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.federated.secure.shamir import MOST_PLACES

_SAFE = 2.0**-40
_RIGHT = 2.0**-20


@dataclass(frozen=True)
class Degree:
    """The number of neighbours of a client, and the number of shares, its own included, that recover its secrets."""

    neighbours: int
    shares: int


def majority(clients: int) -> int:
    """Return a number above two thirds: two such groups share an honest client if fewer than a third lie."""
    return clients * 2 // 3 + 1


@cache
def safe_degree(clients: int, *, colluding: float | None = 0.1, lost: float = 0.1) -> Degree:
    """Return the smallest safe and right degree; all pairs if there is no smaller one, or if ``colluding`` is None."""
    if colluding is not None:
        validation.number("colluding", colluding, minimum=0.0, maximum=0.5)
    validation.number("lost", lost, minimum=0.0, maximum=0.5)
    liars, gone = ceil(clients * (colluding or 0.0)), ceil(clients * lost)
    for neighbours in range(2, min(clients - 1, MOST_PLACES), 2) if colluding is not None else ():
        if clients * _all_among(clients - 1, liars + gone, neighbours // 2) > _SAFE:
            continue
        safe = [n for n in range(1, neighbours + 2) if clients * _tail(clients - 1, liars, neighbours, n) <= _SAFE]
        right = [n for n in safe if clients * _tail(clients, gone, neighbours + 1, neighbours + 2 - n) <= _RIGHT]
        if right:
            return Degree(neighbours, right[len(right) // 2])
    if clients > MOST_PLACES:
        raise ConfigError(
            f"no safe graph for {clients} clients if a part of {colluding} colludes and {lost:g} is lost; a "
            f"client has at most {MOST_PLACES - 1} neighbours. Expect fewer of them, or select fewer clients a round.",
            name="clients",
            received=clients,
        )
    return Degree(clients - 1, majority(clients))


def neighbours_of(clients: Sequence[str], degree: int, seed: bytes) -> dict[str, tuple[str, ...]]:
    """Return the neighbours of each client, itself included; the order on the circle follows from the seed alone."""
    if degree >= len(clients) - 1:
        return dict.fromkeys(clients, tuple(clients))
    circle = sorted(clients, key=lambda name: hashlib.sha256(seed + name.encode()).digest())
    half = degree // 2
    count = len(circle)
    return {
        name: tuple(sorted(circle[(place + step) % count] for step in range(-half, half + 1)))
        for place, name in enumerate(circle)
    }


def _tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """Return the chance that a random draw without replacement has at least this number of marked ones."""
    ways = sum(
        comb(marked, hit) * comb(population - marked, drawn - hit)
        for hit in range(max(at_least, 0), min(marked, drawn) + 1)
    )
    return ways / comb(population, drawn)


def _all_among(population: int, marked: int, drawn: int) -> float:
    """Return the chance that all drawn ones are marked, which cuts off the honest ones at one side of a client."""
    return comb(marked, drawn) / comb(population, drawn)
