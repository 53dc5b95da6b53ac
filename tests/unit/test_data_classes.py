"""Orders by labels of every kind: texts, several classes in an example, several labels; and priors."""

from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.data.order.class_lists import ClassLists, class_lists
from tfdist.data.order.class_priors import Prior, effective_shares, prior_of
from tfdist.data.order.class_shares import Balanced, Weighted
from tfdist.errors import ConfigError, ConfigTypeError

TEXTS = np.array([b"cat"] * 90 + [b"dog"] * 9 + [b"eel"], object)
#: 20 examples of class 0 alone, 8 of 0 and 5, 2 of 5 alone, 10 without a class
LISTS = np.empty(40, object)
LISTS[:] = [[0]] * 20 + [[0, 5]] * 8 + [[5]] * 2 + [[]] * 10


def epochs(order: Any, count: int, *, seed: int = 3) -> np.ndarray:
    positions = np.arange(order.examples)
    return np.concatenate([order.ids(seed=seed, epoch=epoch, positions=positions) for epoch in range(count)])


def test_texts_are_classes() -> None:
    lists = class_lists([TEXTS])
    assert (lists.classes, lists.counts.tolist(), lists.is_exclusive) == ((b"cat", b"dog", b"eel"), [90, 9, 1], True)
    assert class_lists([TEXTS.tolist()]).digest == lists.digest
    assert class_lists([[b"cat"]]).classes == (b"cat",)
    assert class_lists([[]]).examples == 0
    assert Weighted(lists, {b"cat": 1, "dog": 3}).name == Weighted(lists, {"cat": 1, "dog": 3}).name
    found = epochs(Balanced(lists), 3)
    assert [int((TEXTS[found] == kind).sum()) for kind in lists.classes] == [100, 100, 100]
    found = epochs(Weighted(lists, {"cat": 1, "dog": 3}), 4)
    assert [int((TEXTS[found] == kind).sum()) for kind in lists.classes] == [100, 300, 0]


def test_integers_have_the_names_that_states_of_earlier_releases_have() -> None:
    labels = np.array([3, 3, -1, 3])
    assert Balanced(labels).name == Balanced(class_lists([labels])).name == "weighted:b98406b6:-1x1,3x1"
    assert Weighted(labels, {3: 1, "-1": 2, 9: 0}).name == "shares:b98406b6:7ded32179961d3df"


@pytest.mark.parametrize("form", ["lists", "zeros and ones"])
def test_an_example_may_have_several_classes(form: str) -> None:
    column: Any = LISTS
    if form == "zeros and ones":
        column = np.array([[int(0 in row), int(5 in row)] for row in LISTS])
    lists = class_lists([column])
    assert lists.classes == ((0, 5, None) if form == "lists" else (0, 1, None))
    assert lists.counts.tolist() == [28, 10, 10]
    assert not lists.is_exclusive
    order = Balanced(lists)
    found = epochs(order, 3)
    counts = np.bincount(found, minlength=40)
    assert counts.sum() == 120
    assert counts[30:].tolist() == [4] * 10, "40 positions of examples without a class, in turn"
    assert counts[28:30].tolist() == [4, 4], "40 positions of the second class, among 10"
    assert counts[:20].max() <= 2
    often = order.frequencies() * 120
    assert often.sum() == pytest.approx(120)
    assert (np.abs(counts - often) < 1.0 + 1e-9).all()


def test_examples_without_a_class_have_a_weight_of_their_own() -> None:
    found = epochs(Weighted(class_lists([LISTS]), {0: 1, None: 1}), 2)
    assert (found >= 30).sum() == 40
    assert not np.isin(found, (28, 29)).any()


def test_each_combination_of_labels_is_a_class() -> None:
    kind, age = np.array([0, 0, 0, 1, 1, 1, 1, 1]), np.array([b"old", b"old", b"new"] + [b"new"] * 5, object)
    lists = class_lists([kind, age])
    assert lists.classes == ((0, b"new"), (0, b"old"), (1, b"new"))
    found = epochs(Balanced(lists), 6)
    assert np.bincount(lists.places[found]).tolist() == [16, 16, 16]
    found = epochs(Weighted(lists, {(0, "old"): 3, (1, "new"): 1}), 6)
    assert np.bincount(lists.places[found], minlength=3).tolist() == [0, 36, 12]


def test_weights_may_go_by_names_and_by_numbers_in_texts() -> None:
    labels, names = np.array([0, 1, 1, 2]), ("cat", "dog")
    orders = [Weighted(labels, weights, names) for weights in ({0: 1, 1: 2}, {"cat": 1, "dog": 2}, {"0": 1, "dog": 2})]
    assert len({order.name for order in orders}) == 1
    with refused(ConfigTypeError, name="a label of order", received="eel", mentions=["cat, dog"]):
        Weighted(labels, {"eel": 1}, names)
    with refused(ConfigError, name="weights", mentions=["eel"]):
        Weighted(class_lists([TEXTS[:9]]), {"eel": 1})
    with refused(ConfigError, name="weights", mentions=["None"]):
        Weighted(labels, {None: 1, 0: 1})
    pairs = class_lists([labels, labels])
    for of_what, key in ((labels, (0, "old")), (pairs, (0,)), (pairs, (0, 0, 0)), (pairs, ())):
        with refused(ConfigError, name="weights", mentions=[str(key)]):
            Weighted(of_what, {key: 1})


def test_labels_that_are_no_classes() -> None:
    for column in (np.array([[1, 2, 3]]), np.zeros((4, 3, 1))):
        with refused(ConfigError, name="label", received=column.shape[1:]):
            class_lists([column])
    with refused(ConfigError, name="label"):
        class_lists([LISTS, np.arange(40)])


def test_lists_differ_by_their_digests() -> None:
    one, other = (np.empty(2, object) for _ in range(2))
    one[:], other[:] = [[0, 1], [2]], [[0], [1, 2]]
    found: list[ClassLists] = [class_lists([column]) for column in (one, other)]
    assert found[0].digest != found[1].digest


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slope and offset of a logistic regression, by Newton's method."""
    inputs, weights = np.stack([x, np.ones_like(x)], 1), np.zeros(2)
    for _ in range(25):
        p = 1 / (1 + np.exp(-inputs @ weights))
        weights += np.linalg.solve((inputs.T * (p * (1 - p))) @ inputs, inputs.T @ (y - p))
    return weights


@pytest.mark.parametrize("shares", ["balanced", "effective"])
def test_a_model_of_balanced_classes_is_calibrated_by_the_correction(shares: str) -> None:
    rng = np.random.default_rng(5)
    y = (rng.random(40_000) < 0.05).astype(np.int64)  # one in twenty
    x = rng.normal(2.0 * y, 1.0)
    lists = class_lists([y])
    order: Any = Balanced(lists)
    if shares == "effective":
        order = Weighted(lists, effective_shares(dict(enumerate(np.bincount(y).tolist())), beta=0.9999))
    seen = epochs(order, 1)
    slope, offset = logistic(x[seen], y[seen])
    prior = prior_of(lists, order.frequencies(), count=0)
    assert prior.seen == pytest.approx(np.bincount(y[seen]) / len(seen), abs=1e-3)
    fresh = (rng.random(40_000) < 0.05).astype(np.int64)
    logits = slope * rng.normal(2.0 * fresh, 1.0)[:, None] + offset
    told = 1 / (1 + np.exp(-logits))
    assert told.mean() > 0.1, "it predicts the rare class too often"
    for both in (prior.corrected(logits), prior.corrected(np.concatenate([np.zeros_like(logits), logits], 1))):
        corrected = 1 / (1 + np.exp(-(both[:, -1] - (both[:, 0] if both.shape[1] == 2 else 0))))
        assert corrected.mean() == pytest.approx(fresh.mean(), abs=0.006)
        for low, high in ((0.0, 0.05), (0.05, 0.3), (0.3, 1.0)):
            inside = (corrected >= low) & (corrected < high)
            assert fresh[inside].mean() == pytest.approx(corrected[inside].mean(), abs=0.04)


def test_effective_shares_are_those_of_the_paper() -> None:
    counts, beta = {"a": 5000, "b": 300, "c": 2, "d": 0}, 0.999
    weights = np.array([(1 - beta) / (1 - beta**n) if n else 0.0 for n in counts.values()])
    expected = weights * np.array(list(counts.values()))
    assert list(effective_shares(counts, beta).values()) == pytest.approx((expected / expected.sum()).tolist())
    assert effective_shares({0: 30, 1: 10}, 0.0) == {0: 0.75, 1: 0.25}
    assert effective_shares({0: 30, 1: 10}, 1 - 1e-12)[0] == pytest.approx(0.5, abs=1e-6)
    for wrong, name in (
        ((counts, 1.0), "beta"),
        (({}, 0.9), "counts"),
        (([9, 1], 0.9), "counts"),
        (({"a": 0}, 0.9), "counts"),
        ((counts, -1), "beta"),
    ):
        with pytest.raises(ConfigError) as caught:
            effective_shares(*wrong)
        assert caught.value.name == name
    with refused(ConfigError, name="count of 'a'", received=-1):
        effective_shares({"a": -1}, 0.9)


def test_the_prior_of_several_classes_in_an_example() -> None:
    lists = class_lists([LISTS])
    order = Balanced(lists)
    prior = prior_of(lists, order.frequencies(), count=7)
    assert (prior.classes, prior.is_exclusive) == ((0, 1, 2, 3, 4, 5, 6), False)
    assert prior.true[[0, 5]].tolist() == [28 / 40, 10 / 40]
    many = epochs(order, 30)
    has = [np.array([kind in row for row in LISTS]) for kind in (0, 5)]
    assert prior.seen[[0, 5]] == pytest.approx([one[many].mean() for one in has], abs=5e-3)
    odds = [true / (1 - true) * (1 - seen) / seen for true, seen in zip(prior.true, prior.seen, strict=True) if true]
    assert prior.offsets[[0, 5]] == pytest.approx(np.log(odds))
    assert (prior.offsets[[1, 2, 3, 4, 6]] == -np.inf).all()
    assert prior_of(class_lists([LISTS[:30]]), np.full(30, 1 / 30), count=0).is_exclusive is False
    assert prior_of(class_lists([LISTS[29:]]), np.full(11, 1 / 11), count=0).is_exclusive is False, "nor with no class"
    assert Prior((0,), np.array([0.9]), np.array([1.0]), is_exclusive=False).offsets == 0.0, "it is in every example"


@pytest.mark.parametrize(
    ("labels", "count", "classes"),
    [
        ([3, 1], 0, (0, 1, 2, 3)),
        ([3, 1], 6, (0, 1, 2, 3, 4, 5)),
        ([3, -1], 6, (-1, 3)),
        ([9999], 0, tuple(range(10_000))),
        ([10_000], 0, (10_000,)),
        ([10_000], 10_001, tuple(range(10_001))),
        ([[]], 3, ()),
    ],
)
def test_the_classes_of_logits(labels: list[Any], count: int, classes: tuple[int, ...]) -> None:
    assert prior_of(class_lists([labels]), np.full(len(labels), 1 / len(labels)), count=count).classes == classes


def test_a_prior_without_shares_corrects_nothing() -> None:
    prior = prior_of(class_lists([TEXTS]), np.full(100, 0.01), count=0)
    assert prior.classes == (b"cat", b"dog", b"eel")
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)
    found = prior.corrected(logits)
    assert found == pytest.approx(logits)
    assert found.dtype == np.float32
    assert prior.corrected([1, 2, 3]) == pytest.approx([1, 2, 3])
    two = Prior((0, 1), np.array([0.9, 0.1]), np.array([0.5, 0.5]), is_exclusive=False)
    with refused(ConfigError, name="logits", mentions=["2 classes"]):
        two.corrected(np.zeros((3, 1)))
    assert two.corrected([0, 0]) == pytest.approx([np.log(9), -np.log(9)])
    for wrong in (np.zeros((4, 2)), np.zeros(()), np.zeros((3, 1))):
        with refused(ConfigError, name="logits", mentions=["3 classes"]):
            prior.corrected(wrong)
    left_out = Prior((0, 1), np.array([0.9, 0.1]), np.array([0.0, 1.0]), is_exclusive=True)
    assert left_out.offsets.tolist() == [-np.inf, np.log(0.1)]
