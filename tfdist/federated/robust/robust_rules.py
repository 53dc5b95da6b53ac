"""Rules that combine updates of clients, each with the number of liars that it survives.

A liar may send anything, may know all other updates, and may agree with other liars. A rule that survives f of n keeps
its result near the honest updates whatever f of them send. The rule knows f, and refuses an f that it does not survive.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.federated.aggregation import WholeRule
from tfdist.federated.client_update import Arrays, Update
from tfdist.federated.robust import update_distances
from tfdist.federated.robust.update_distances import Float

Rows = NDArray[Any]


class RobustRule(WholeRule):
    """An aggregator that survives a number of liars, such as `Median`, `TrimmedMean`, `Krum` or `MultiKrum`.

    An update that is not finite comes from a liar: it is left out, and counts as one of ``liars``.

    Attributes:
        liars: the number of clients that may send anything.
    """

    liars: int

    def survives(self, clients: int) -> int:
        """Return the largest number of liars among this many clients for which the rule holds; below 0 for none.

        Without another limit of the rule, these are fewer than half.

        Args:
            clients: the number of updates of a round.
        """
        return (clients - 1) // 2

    @abstractmethod
    def _combined(self, rows: Rows, liars: int) -> Float:
        """Return one row, float64, combined from finite rows, of which up to ``liars`` may be lies."""

    def combine(self, rows: Rows) -> Float:
        """Combine many rows into one.

        Args:
            rows: the update of each client, of any float dtype, shape ``[clients, size]``.
        Returns:
            The combined row, float64 ``[size]``; always finite if the honest rows are.
        Raises:
            ConfigError: the rule does not survive ``liars`` liars among so few clients, or more rows than ``liars`` are
                not finite; the field `workers` has the numbers of these rows.

        Example:
            >>> Median(liars=1).combine(np.array([[1.0], [2.0], [1e30]]))
            array([2.])
        """
        rows = np.asarray(rows)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.floating):
            raise ConfigError(
                f"rows have the shape {rows.shape} and the dtype {rows.dtype}; they must be floats of the shape "
                "[clients, size]. Flatten each client's update into one row.",
                name="rows",
                received=(rows.shape, rows.dtype.name),
            )
        _require_survived(self, len(rows))
        finite = _are_finite(rows)
        broken = np.flatnonzero(~finite)
        if len(broken) > self.liars:
            raise ConfigError(
                f"{len(broken)} of {len(rows)} updates are not finite (numbers {', '.join(map(str, broken))}), and "
                f"{type(self).__name__} was told of {self.liars} liars. Look at these clients, or expect more liars.",
                name="rows",
                received=len(broken),
                workers=broken.tolist(),
            )
        return self._combined(rows[finite] if len(broken) else rows, self.liars - len(broken))

    def aggregate(self, updates: Sequence[Update], weights: Sequence[float]) -> Arrays:
        """Return the combined update of a round; every client has the same weight.

        Args:
            updates: the clients' updates.
            weights: not used: clients report their numbers of examples, so a liar could raise its own weight.
        """
        shapes = {name: array.shape for name, array in updates[0].arrays.items()}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        parts = np.split(self.combine(_rows_of(updates)), ends)
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def _rows_of(updates: Sequence[Update]) -> Rows:
    dtype = np.result_type(*(array.dtype for one in updates for array in one.arrays.values()))
    return np.stack(
        [np.concatenate([np.ravel(one.arrays[name]).astype(dtype) for name in updates[0].arrays]) for one in updates]
    )


def _are_finite(rows: Rows) -> NDArray[np.bool_]:
    found = np.ones(len(rows), bool)
    for _, values in update_distances.blocks(rows):
        found &= np.isfinite(values).all(axis=1)
    return found


def _require_survived(rule: RobustRule, clients: int) -> None:
    """Raise `ConfigError` if a rule does not survive its liars among this many clients."""
    most = rule.survives(clients)
    if rule.liars > most or clients < 1:
        survived = f"survives {most} liars" if most >= 0 else "needs more clients even without liars"
        raise ConfigError(
            f"{type(rule).__name__} expects {rule.liars} liars among {clients} clients; with so many it "
            f"{survived}. Ask more clients in a round, expect fewer liars, or take a rule that survives more: Median "
            "and GeometricMedian survive all but half.",
            name="liars",
            received=rule.liars,
        )


@dataclass(frozen=True, kw_only=True)
class _Told(RobustRule):
    liars: int

    def __post_init__(self) -> None:
        validation.integer("liars", self.liars, minimum=0, hint="Pass the number of clients that may lie.")


@dataclass(frozen=True, kw_only=True)
class Median(_Told):
    """The median of each number over clients; survives fewer liars than half of the clients.

    Each number of the result is between two honest ones. Liars within the spread of the honest updates still shift it,
    more so in high dimensions and if clients' data differ; `Mixing` helps there.

    Args:
        liars: the number of clients that may send anything.

    Example:
        >>> Median(liars=1).combine(np.array([[1.0, 5.0], [2.0, 6.0], [3.0, -9.0]]))
        array([2., 5.])

    Source: D. Yin et al., "Byzantine-Robust Distributed Learning", 2018.
    """

    def _combined(self, rows: Rows, liars: int) -> Float:
        return _median(rows)


def _median(rows: Rows) -> Float:
    result = np.empty(rows.shape[1])
    for columns, values in update_distances.blocks(rows):
        result[columns] = np.median(values, axis=0)
    return result


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(_Told):
    """The mean of each number without its ``liars`` largest and smallest; survives fewer liars than half.

    It uses more of the honest updates than the median, and is the plain mean with 0 liars.

    Args:
        liars: the number of clients that may send anything.

    Example:
        >>> TrimmedMean(liars=1).combine(np.array([[1.0], [2.0], [4.0], [1e30]]))
        array([3.])

    Source: D. Yin et al., "Byzantine-Robust Distributed Learning", 2018.
    """

    def _combined(self, rows: Rows, liars: int) -> Float:
        clients = len(rows)
        result = np.empty(rows.shape[1])
        for columns, values in update_distances.blocks(rows):
            result[columns] = np.sort(values, axis=0)[liars : clients - liars].mean(axis=0)
        return result


@dataclass(frozen=True, kw_only=True)
class MultiKrum(_Told):
    """The mean of the updates that lie closest to others; survives f liars among at least 2f + 3 clients.

    The score of an update is the sum of its squared distances to the n - f - 2 nearest others. The lowest scores are
    kept; of equal ones, the first.

    Args:
        liars: f, the number of clients that may send anything.
        keep: the number of updates that are averaged; at most, and by default, n - f.

    Example:
        >>> MultiKrum(liars=1).combine(np.array([[0.0], [1.0], [2.0], [3.0], [1e30]]))
        array([1.5])

    Source: P. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", 2017.
    """

    keep: int | None = None
    _least: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None:
            validation.integer("keep", self.keep, minimum=1)

    def survives(self, clients: int) -> int:
        """Return the largest number of liars among this many clients for which the rule holds; below 0 for none.

        Args:
            clients: the number of updates of a round.
        """
        return min((clients - self._least) // 2, clients - (self.keep or 1))

    def _chosen(self, rows: Rows, liars: int) -> NDArray[np.intp]:
        """Return the rows that are kept, the lowest score first."""
        clients = len(rows)
        nearest = clients - liars - 2
        distances = update_distances.squared_distances(rows)
        np.fill_diagonal(distances, np.inf)  # sorted last, and not counted
        scores = np.sort(distances, axis=1)[:, :nearest].sum(axis=1)
        return np.argsort(scores, kind="stable")[: self.keep or clients - liars]

    def _combined(self, rows: Rows, liars: int) -> Float:
        weights = np.zeros(len(rows))
        weights[self._chosen(rows, liars)] = 1.0
        return update_distances.mean_of(rows, weights)


@dataclass(frozen=True, kw_only=True)
class Krum(MultiKrum):
    """The single update that lies closest to others; survives f liars among at least 2f + 3 clients.

    It is `MultiKrum` with ``keep=1``: always a client's own update, and noisier than a mean.

    Args:
        liars: the number of clients that may send anything.

    Example:
        >>> Krum(liars=1).combine(np.array([[0.0], [1.0], [1.5], [3.0], [1e30]]))
        array([1.])

    Source: P. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", 2017.
    """

    keep: int | None = 1


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(_Told):
    """The point with the smallest sum of distances to the updates; survives fewer liars than half.

    It is found by Weiszfeld's steps, which end when a step is shorter than ``tolerance`` times the median distance.

    Args:
        liars: the number of clients that may send anything.
        tolerance: the relative length of the last step.
        steps: the largest number of steps.

    Example:
        >>> GeometricMedian(liars=1).combine(np.array([[0.0, 0.0], [0.0, 0.0], [1e30, 0.0]]))
        array([0., 0.])

    Source: K. Pillutla et al., "Robust Aggregation for Federated Learning", 2022.
    """

    tolerance: float = 1e-6
    steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("tolerance", self.tolerance, minimum=0.0)
        validation.integer("steps", self.steps, minimum=1)

    def _combined(self, rows: Rows, liars: int) -> Float:
        point = _median(rows)  # is near the honest rows, so no step begins at a liar's
        for _ in range(self.steps):
            distances = np.sqrt(update_distances.squared_distances_to(point, rows))
            scale = float(np.median(distances))
            if scale == 0.0:  # half of the updates are this very point
                return point
            moved = _weiszfeld(point, rows, distances)
            step = float(np.sqrt(update_distances.squared_distances_to(moved, point[None])[0]))
            point = moved
            if step <= self.tolerance * scale:
                break
        return point


def _weiszfeld(point: Float, rows: Rows, distances: Float) -> Float:
    """Return the point after one step, which may start from an update itself (Y. Vardi and C.-H. Zhang, 2000)."""
    here = distances == 0.0
    weights = np.where(here, 0.0, 1.0 / np.where(here, 1.0, distances))
    others = update_distances.mean_of(rows, weights)
    if not here.any():
        return others
    pull = float(np.sqrt(update_distances.squared_distances_to(others, point[None])[0])) * float(weights.sum())
    stays = min(1.0, float(here.sum()) / pull) if pull else 1.0
    return point * stays + others * (1.0 - stays)


@dataclass(frozen=True, kw_only=True)
class NormClipping(_Told):
    """The mean of updates that are scaled down to a common norm; survives fewer liars than half of the clients.

    A liar can move the mean by at most ``limit / n``; a small lie in a consistent direction is not noticed.

    Args:
        liars: the number of clients that may send anything.
        limit: the largest norm; by default the median of the clients' norms.

    Example:
        >>> NormClipping(liars=1, limit=1.0).combine(np.array([[1.0], [0.5], [-1e30]])).round(3)
        array([0.167])

    Source: Z. Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None:
            validation.number("limit", self.limit, above=0.0)

    def clipped(self, updates: Sequence[Update]) -> int:
        """Return the number of updates that are scaled down; one that is not finite is left out instead.

        Args:
            updates: the clients' updates.
        """
        rows = _rows_of(updates)
        return int(np.count_nonzero(self._factors(rows[_are_finite(rows)]) < 1))

    def _factors(self, rows: Rows) -> Float:
        """Return the factor by which each row is multiplied."""
        largest = np.zeros(len(rows))
        for _, values in update_distances.blocks(rows):
            np.maximum(largest, np.abs(values).max(axis=1), out=largest)
        units = np.where(largest > 0, largest, 1.0)  # squares of numbers over 1e154 are infinite
        squares = np.zeros(len(rows))
        for _, values in update_distances.blocks(rows):
            squares += np.square(values / units[:, None]).sum(axis=1)
        norms = units * np.sqrt(squares)
        limit = float(np.median(norms)) if self.limit is None else self.limit
        return np.where(norms > limit, limit / np.where(norms > 0, norms, 1.0), 1.0)

    def _combined(self, rows: Rows, liars: int) -> Float:
        factors = self._factors(rows)
        result = np.empty(rows.shape[1])
        for columns, values in update_distances.blocks(rows):
            result[columns] = (factors[:, None] * values).mean(axis=0)
        return result


@dataclass(frozen=True)
class Mixing(RobustRule):
    """A rule that replaces each update by the mean of its n - f nearest, itself included, before another rule.

    Clients whose data differ send updates that differ, among which liars can hide; after mixing, honest updates are
    closer to their mean. It survives as many liars as the other rule.

    Args:
        rule: the rule that combines the mixed updates, and has the number of liars.

    Example:
        >>> Mixing(Median(liars=1)).combine(np.array([[0.0], [1.0], [5.0], [1e30]])).round(3)
        array([2.])

    Source: Y. Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", 2023.
    """

    rule: RobustRule
    liars: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "liars", self.rule.liars)

    def survives(self, clients: int) -> int:
        """Return the largest number of liars among this many clients for which the rule holds; below 0 for none.

        Args:
            clients: the number of updates of a round.
        """
        return min(self.rule.survives(clients), super().survives(clients))

    def _combined(self, rows: Rows, liars: int) -> Float:
        clients = len(rows)
        nearest = clients - liars
        order = np.argsort(update_distances.squared_distances(rows), axis=1, kind="stable")[:, :nearest]
        mixed = np.empty(rows.shape)
        for columns, values in update_distances.blocks(rows):
            for one, others in enumerate(order):
                mixed[one, columns] = values[others].mean(axis=0)
        return self.rule._combined(mixed, liars)
