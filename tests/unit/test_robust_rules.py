"""Robust rules against slow float64 references, and against liars."""

import itertools
import math

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.federated.client_update import Update
from tfdist.federated.robust.robust_rules import (
    GeometricMedian,
    Krum,
    Median,
    Mixing,
    MultiKrum,
    NormClipping,
    TrimmedMean,
)
from tfdist.federated.robust.update_distances import squared_distances

CASES = range(1000)
KINDS = {
    "median": Median,
    "trimmed": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "clipping": NormClipping,
    "geometric": GeometricMedian,
}


def updates_of(case):
    """Updates of a few clients: anything, with ties in exact binary fractions, or equal to a millionth."""
    rng = np.random.default_rng(case)
    clients, size = int(rng.integers(3, 12)), int(rng.integers(1, 9))
    kind = case % 3
    if kind == 0:
        found = rng.normal(size=(clients, size)) * 10.0 ** rng.integers(-20, 20)
    elif kind == 1:
        found = rng.integers(-2, 3, (clients, size)) / 4.0
    else:
        found = 50.0 * rng.normal(size=size) + 1e-6 * rng.normal(size=(clients, size))
    return found.astype(np.float32 if case % 2 else np.float64), rng


def median(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def distance(a, b):
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def krum_order(rows, liars):
    scores = []
    for place, row in enumerate(rows):
        others = sorted(distance(row, other) for at, other in enumerate(rows) if at != place)
        scores.append(math.fsum(others[: len(rows) - liars - 2]))
    return sorted(range(len(rows)), key=lambda place: (scores[place], place))


def mean(rows):
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def reference(kind, rows, liars):
    columns = list(zip(*rows, strict=True))
    if kind == "median":
        return [median(column) for column in columns]
    if kind == "trimmed":
        return mean([*zip(*(sorted(column)[liars : len(rows) - liars] for column in columns), strict=True)])
    if kind == "krum":
        return rows[krum_order(rows, liars)[0]]
    if kind == "multi-krum":
        return mean([rows[place] for place in krum_order(rows, liars)[: len(rows) - liars]])
    norms = [math.sqrt(math.fsum(x * x for x in row)) for row in rows]
    limit = median(norms)
    return mean(
        [[x * min(1.0, limit / norm) if norm else x for x in row] for row, norm in zip(rows, norms, strict=True)]
    )


def mixed(rows, liars):
    nearest = [
        sorted(range(len(rows)), key=lambda at: (distance(row, rows[at]), at))[: len(rows) - liars] for row in rows
    ]
    return [mean([rows[place] for place in places]) for places in nearest]


def close(found, wanted, rows):
    scale = max(abs(x) for row in rows for x in row) or 1.0
    np.testing.assert_allclose(np.array(found) / scale, np.array(wanted) / scale, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "geometric"])
def test_a_rule_equals_its_float64_reference_in_1000_cases(kind):
    rule = KINDS[kind]
    seen = 0
    for case in CASES:
        updates, rng = updates_of(case)
        most = rule(liars=0).survives(len(updates))
        liars = int(rng.integers(0, most + 1))
        rows = updates.astype(np.float64).tolist()
        close(rule(liars=liars).combine(updates), reference(kind, rows, liars), rows)
        seen += 1
    assert seen == 1000


def test_mixing_equals_its_float64_reference():
    for case in CASES:
        updates, rng = updates_of(case)
        liars = int(rng.integers(0, Median(liars=0).survives(len(updates)) + 1))
        rows = updates.astype(np.float64).tolist()
        wanted = reference("median", mixed(rows, liars), liars)
        close(Mixing(Median(liars=liars)).combine(updates), wanted, rows)


def sum_of_distances(point, updates):
    """The sum, and a bound of what the smallest one is, by the subgradient at the point."""
    differences = updates - point
    lengths = np.linalg.norm(differences, axis=1)
    here = lengths == 0
    pull = np.linalg.norm((differences[~here] / lengths[~here][:, None]).sum(axis=0))
    return lengths.sum(), lengths.sum() - max(0.0, pull - here.sum()) * lengths.max()


def test_the_geometric_median_has_the_smallest_sum_of_distances():
    for case in CASES[::4]:  # each takes as long as ten of another rule
        updates, _ = updates_of(case)
        point = GeometricMedian(liars=0).combine(updates)
        wide = updates.astype(np.float64)
        total, bound = sum_of_distances(point, wide)
        nearest = wide[np.argmin(np.linalg.norm(wide - point, axis=1))]
        assert total <= (1 + 2e-3) * max(bound, sum_of_distances(nearest, wide)[1]) + 1e-300, case


def test_distances_near_convergence_are_those_of_float64():
    """Weights of norm 50 whose updates have the norm 0.001, as float32: the short formula gets these wrong."""
    rng = np.random.default_rng(5)
    weights = rng.normal(size=20_000)
    weights *= 50 / np.linalg.norm(weights)
    steps = rng.normal(size=(10, 20_000))
    steps *= 0.001 / np.linalg.norm(steps, axis=1, keepdims=True)
    updates = (weights + steps).astype(np.float32)
    wide = updates.astype(np.float64)
    wanted = np.array([[np.sum((a - b) ** 2) for a in wide] for b in wide])
    np.testing.assert_allclose(squared_distances(updates), wanted, rtol=1e-12)
    square = np.sum(updates**2, axis=1)
    short = square[:, None] + square[None] - 2 * updates @ updates.T
    assert np.abs(short - wanted).max() > 0.1 * wanted.max()  # what it protects from


def lies(name, honest, liars, rng):
    if name == "1e30":
        return np.full((liars, honest.shape[1]), 1e30)
    if name == "-1e30 and 1e30":
        return np.where(np.arange(liars)[:, None] % 2, 1e30, -1e30) * np.ones(honest.shape[1])
    if name == "not finite":
        return rng.choice([np.nan, np.inf, -np.inf], (liars, honest.shape[1]))
    return np.full((liars, honest.shape[1]), 1e300)


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_survives_as_many_liars_as_it_says(kind, mixes):
    make = KINDS[kind]
    for clients, name in itertools.product((3, 5, 7, 10, 11, 23), ("1e30", "-1e30 and 1e30", "not finite", "1e300")):
        rng = np.random.default_rng(clients)
        most = make(liars=0).survives(clients)
        rule = make(liars=most)
        rule = Mixing(rule) if mixes else rule
        honest = 3.0 + 0.1 * rng.normal(size=(clients - most, 5))
        updates = np.concatenate([honest, lies(name, honest, most, rng)])
        found = rule.combine(rng.permutation(updates))
        assert np.isfinite(found).all()
        if kind == "clipping":  # moved by as much as all liars can, each within the median norm
            assert np.linalg.norm(found) <= 1.01 * np.linalg.norm(honest, axis=1).max()
        else:
            spread = 1.0 if kind == "geometric" else 1e-9
            assert (found >= honest.min(axis=0) - spread).all(), (clients, name)
            assert (found <= honest.max(axis=0) + spread).all(), (clients, name)


@pytest.mark.parametrize("kind", KINDS)
def test_more_liars_than_it_survives_are_refused(kind):
    make = KINDS[kind]
    for clients in (3, 4, 7, 10, 16):
        most = make(liars=0).survives(clients)
        assert np.isfinite(make(liars=most).combine(np.ones((clients, 2)))).all()
        with refused(ConfigError, name="liars", received=most + 1):
            make(liars=most + 1).combine(np.ones((clients, 2)))


def test_the_limits_are_those_of_the_papers():
    assert [Median(liars=0).survives(n) for n in (1, 2, 3, 10, 11)] == [0, 0, 1, 4, 5]
    assert [Krum(liars=0).survives(n) for n in (3, 4, 5, 7, 9, 10)] == [0, 0, 1, 2, 3, 3]
    assert MultiKrum(liars=0, keep=9).survives(10) == 1  # all that are kept must be able to be honest


def test_more_broken_updates_than_liars_are_named():
    updates = np.ones((7, 2))
    updates[[1, 4]] = np.nan
    with refused(ConfigError, name="rows", workers=(1, 4)):
        Median(liars=1).combine(updates)
    assert Median(liars=2).combine(updates).tolist() == [1.0, 1.0]


def test_an_aggregator_gives_arrays_their_shapes_and_ignores_claimed_examples():
    """Two of five claim a million examples, and move the median within the honest updates."""

    def update(value, examples):
        return Update({"kernel": np.full((2, 3), value, np.float32), "bias": np.array(value)}, examples)

    updates = [update(value, 1) for value in (1.0, 2.0, 3.0)] + [update(1e30, 10**6), update(np.nan, 10**6)]
    aggregation = Median(liars=2).start()
    for one in updates:
        aggregation.add(one, float(one.examples))
    found = aggregation.result()
    assert found["kernel"].tolist() == [[2.5] * 3] * 2  # of 1, 2, 3 and 1e30; the other is left out
    assert found["bias"].shape == ()
    assert found["bias"] == 2.5
    assert NormClipping(liars=2).clipped(updates) == 2  # 3 and 1e30, down to the median of four
    assert Median(liars=2).clipped(updates) is None


@pytest.mark.parametrize("updates", [np.ones(3), np.ones((2, 2, 2)), np.ones((3, 2), int), [["a"]]])
def test_what_is_no_table_of_floats_is_refused(updates):
    with refused(ConfigError, name="rows"):
        Median(liars=0).combine(updates)


def test_no_clients_are_refused():
    with refused(ConfigError, name="liars"):
        Median(liars=0).combine(np.ones((0, 2)))


@pytest.mark.parametrize("liars", [1.5, True, "1", None])
def test_liars_are_a_count(liars):
    with refused(ConfigTypeError, name="liars"):
        Median(liars=liars)
    with refused(ConfigError, name="liars", received=-1):
        Median(liars=-1)
