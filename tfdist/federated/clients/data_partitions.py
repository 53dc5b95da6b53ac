"""The division of arrays among simulated clients: at random, by Dirichlet distributions of labels, or by a feature."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.order.class_shares import places_of
from tfdist.errors import ConfigError

_Arrays = tuple[NDArray[Any], ...]


def split_iid(arrays: Sequence[Any], clients: int, *, seed: int = 0) -> list[_Arrays]:
    """Divide examples among clients at random, as evenly as their number allows.

    Args:
        arrays: a sequence of arrays such as (x, y), with a row for each example.
        clients: the number of clients, at most one for each example.
        seed: the seed of the permutation.
    Returns:
        The arrays of each client.
    Raises:
        ConfigError: the arrays have different numbers of rows, or there are more clients than rows.

    Example:
        >>> [len(y) for _, y in split_iid((np.zeros((10, 2)), np.arange(10)), 3)]
        [4, 3, 3]
    """
    found, rows = _checked(arrays, clients)
    order = np.random.default_rng(seed).permutation(rows)
    return [tuple(array[part] for array in found) for part in np.array_split(order, clients)]


def split_dirichlet(
    arrays: Sequence[Any], labels: Any, clients: int, *, alpha: float, seed: int = 0, minimum: int = 1
) -> list[_Arrays]:
    """Divide examples so that each label's shares over the clients are drawn from a Dirichlet distribution.

    Args:
        arrays: a sequence of arrays such as (x, y), with a row for each example.
        labels: an integer or a text for each example, commonly y.
        clients: the number of clients.
        alpha: the parameter of the distribution: 0.1 gives most clients few labels, 100 is nearly `split_iid`.
        seed: the seed of the draws.
        minimum: the least number of examples of a client; clients with fewer take from the one with most.
    Returns:
        The arrays of each client.
    Raises:
        ConfigError: there are too few examples, or alpha is not above 0.

    Example:
        >>> x, y = np.zeros((100, 2)), np.arange(100) % 2
        >>> parts = split_dirichlet((x, y), y, 4, alpha=0.3)
        >>> sum(len(y) for _, y in parts), min(len(y) for _, y in parts) >= 1
        (100, True)
    """
    validation.number("alpha", alpha, above=0)
    validation.integer("minimum", minimum, minimum=1)
    found, rows = _checked(arrays, clients, minimum)
    kinds = _one_per_row("labels", labels, rows)
    generator = np.random.default_rng(seed)
    parts = [list[int]() for _ in range(clients)]
    for _, rows_of_kind in places_of(kinds):
        members = generator.permutation(rows_of_kind)
        shares = generator.dirichlet(np.full(clients, alpha))
        ends = np.round(np.cumsum(shares) * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, ends[:-1]), strict=True):
            part.extend(piece.tolist())
    longest = [(-len(part), number) for number, part in enumerate(parts)]
    heapq.heapify(longest)
    for part in parts:
        while len(part) < minimum:
            giver = longest[0][1]  # it has more than the minimum, so that it is never one that has taken
            part.append(parts[giver].pop())
            heapq.heapreplace(longest, (-len(parts[giver]), giver))
    return [tuple(array[part] for array in found) for part in parts]


def split_by(arrays: Sequence[Any], feature: Any) -> dict[str, _Arrays]:
    """Make a client of each value of a feature, such as an author or a hospital.

    Args:
        arrays: a sequence of arrays such as (x, y), with a row for each example.
        feature: a value for each example.
    Returns:
        The arrays of each client, by the client's name, which is the value as a text.
    Raises:
        ConfigError: there is not one value for each example, or two values have the same text.

    Example:
        >>> parts = split_by((np.arange(4),), ["berlin", "paris", "berlin", "rome"])
        >>> {name: x.tolist() for name, (x,) in parts.items()}
        {'berlin': [0, 2], 'paris': [1], 'rome': [3]}
    """
    found, rows = _checked(arrays, 1)
    values = _one_per_row("feature", feature, rows)
    groups = list(places_of(values))
    names = [one.decode() if isinstance(one, bytes) else str(one) for one, _ in groups]
    if len(set(names)) < len(names):
        raise ConfigError("two values of the feature have the same text.", name="feature", received=names)
    return {name: tuple(array[mine] for array in found) for name, (_, mine) in zip(names, groups, strict=True)}


def _checked(arrays: Sequence[Any], clients: int, minimum: int = 1) -> tuple[_Arrays, int]:
    validation.integer("clients", clients, minimum=1)
    found = tuple(np.asarray(array) for array in arrays)
    shapes = [array.shape for array in found]
    if not found or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ConfigError(
            f"the arrays have the shapes {shapes}; each must have the same number of rows.",
            name="arrays",
            received=shapes,
        )
    if shapes[0][0] < clients * minimum:
        raise ConfigError(
            f"{shapes[0][0]} examples are too few for {clients} clients with at least {minimum} each. "
            "Take fewer clients.",
            name="clients",
            received=clients,
        )
    return found, shapes[0][0]


def _one_per_row(name: str, values: Any, rows: int) -> NDArray[Any]:
    found = np.asarray(values)
    if found.shape != (rows,):
        raise ConfigError(
            f"{name} has the shape {found.shape}; it must have one value for each of the {rows} examples.",
            name=name,
            received=found.shape,
        )
    return found
