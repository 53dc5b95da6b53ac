"""Orders: what they compute is pinned for ever, is a permutation where it must be one, and looks random."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.data.order.class_shares import Balanced, Weighted
from tfdist.data.order.epoch_orders import (
    Block,
    Full,
    Ids,
    InBlocks,
    Order,
    Permutation,
    Sequential,
    permuted,
    seeds_of,
)
from tfdist.errors import ConfigError, ConfigTypeError

LABELS = np.arange(100) % 10 // 7

# A run that was saved by one version of tfdist is resumed by another: these numbers never change.
GOLDEN: list[tuple[Order, int, int, list[int]]] = [
    (Full(12), 17, 0, [4, 2, 0, 9, 5, 7, 11, 10]),
    (Full(12), 17, 1, [2, 0, 1, 6, 5, 8, 3, 9]),
    (Full(4096), 17, 0, [3780, 3856, 682, 418, 1967, 2500, 1623, 2782]),
    (Full(4097), 17, 0, [2464, 3937, 3861, 1203, 3325, 3712, 4051, 1474]),
    (Full(10**6), 17, 3, [368902, 74570, 207203, 192498, 725947, 486801, 589202, 255639]),
    (Full(10**12), -1, 0, [324571668494, 113925950235, 8257103716, 813373239431, 549347672265, 131211410572]),
    (Block(100, 4, 3), 17, 0, [30, 89, 90, 29, 31, 91, 28, 22, 88, 21, 23, 20]),
    (Block(10**6, 256, 64), 17, 1, [519667, 477222, 224941, 499716, 205748, 900814, 269259, 87953]),
    (Balanced(LABELS), 17, 0, [7, 10, 47, 26, 88, 94, 2, 97, 20, 48, 33, 8]),
    (Weighted(LABELS, {0: 0.25, 1: 0.75}), 17, 2, [63, 18, 58, 99, 34, 79, 24, 29, 38, 69, 8, 3]),
    (Sequential(5), 17, 2, [0, 1, 2, 3, 4]),
]


def epoch_of(order: Order, *, seed: int = 3, epoch: int = 1) -> np.ndarray:
    return order.ids(seed=seed, epoch=epoch, positions=np.arange(order.examples))


@pytest.mark.parametrize(("order", "seed", "epoch", "expected"), GOLDEN, ids=lambda value: getattr(value, "name", None))
def test_the_order_is_what_it_always_was(order: Order, seed: int, epoch: int, expected: list[int]) -> None:
    positions = np.arange(len(expected))
    assert order.ids(seed=seed, epoch=epoch, positions=positions).tolist() == expected


def test_weights_of_many_classes_give_what_they_always_gave() -> None:
    order = Weighted(np.arange(9000) % 3000, dict(enumerate(range(1, 3001))))
    found = order.ids(seed=17, epoch=10**6, positions=np.arange(4000, 4008))
    assert found.tolist() == [2837, 8346, 8020, 6797, 5528, 2993, 5195, 1403]


def test_a_whole_epoch_is_what_it_always_was() -> None:
    digest = hashlib.sha256(epoch_of(Full(100_003), seed=5, epoch=2).astype("<i8").tobytes()).hexdigest()
    assert digest.startswith("63334283cd389f91")


def test_the_seeds_of_augmentation_are_what_they_always_were() -> None:
    found = seeds_of(np.array([0, 1, 2**40]), seed=17, epoch=1).tolist()
    assert found == [[-94041514, -264740899], [981589212, 947255557], [-339948973, 558389857]]


@given(examples=st.integers(1, 9000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_every_example_stands_once_in_an_epoch(examples: int, seed: int, epoch: int) -> None:
    for order in (Full(examples), Block(examples, 7, 3), Block(examples, 64, 5), Sequential(examples)):
        found = epoch_of(order, seed=seed, epoch=epoch)
        assert (np.sort(found) == np.arange(examples)).all(), order.name


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_position_does_not_depend_on_what_it_is_asked_with(data: st.DataObject) -> None:
    examples = data.draw(st.integers(1, 6000))
    labels = np.arange(examples) % 7
    orders: list[Order] = [Full(examples), Block(examples, 5, 4), Balanced(labels), Weighted(labels, {0: 1.0})]
    order = data.draw(st.sampled_from(orders))
    positions = np.array(data.draw(st.lists(st.integers(0, examples - 1), max_size=20)), np.int64)
    assert (order.ids(seed=3, epoch=1, positions=positions) == epoch_of(order)[positions]).all()


def test_permutations_that_run_together_are_those_that_run_alone() -> None:
    sizes = [1, 5000, 5000, 4097, 70_000, 3, 8192, 70_001]  # of tables, and of networks of several widths
    draw = np.random.default_rng(7)
    counts = [1, 3000, 0, 4097, 2, 3, 8192, 1500]
    positions = [draw.permutation(size)[:count] for size, count in zip(sizes, counts, strict=True)]
    permutations = [Permutation(size, "test", number) for number, size in enumerate(sizes)]
    together = permuted(permutations, positions)
    for one, at, found in zip(permutations, positions, together, strict=True):
        assert found.tolist() == [int(one(np.array([position]))[0]) for position in at[:50]] + one(at)[50:].tolist()
        assert len(set(found.tolist())) == len(at)
        assert (found < one.size).all()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = epoch_of(Full(5000), epoch=0)
    for other in (epoch_of(Full(5000), epoch=1), epoch_of(Full(5000), seed=4, epoch=0)):
        assert (first == other).mean() < 0.01
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.06


@pytest.mark.parametrize("examples", [5, 6, 4096, 5000])
def test_each_place_gets_each_example_alike(examples: int) -> None:
    """Pearson's test over seeds, for single places and for the distance of neighbours; 20 cells, so 19 is expected."""
    places = np.array([0, 1, examples // 2, examples - 1])
    found = np.array([Full(examples).ids(seed=s, epoch=0, positions=places) for s in range(1500)])
    cells = min(20, examples)
    columns = [*found.T, (found[:, 1] - found[:, 0]) % examples]
    for column in columns[:4]:
        counts = np.bincount(column * cells // examples, minlength=cells)
        expected = np.diff(np.ceil(np.arange(cells + 1) * examples / cells)) / examples * 1500
        assert ((counts - expected) ** 2 / expected).sum() < 50  # one sound order in 10,000 is above
    assert len(np.unique(columns[4])) > min(examples, 1500) / 3


def test_small_sets_are_put_into_every_order() -> None:
    found = {tuple(epoch_of(Full(4), seed=seed)) for seed in range(600)}
    assert len(found) == 24


def test_blocks_are_read_as_neighbours_and_mixed() -> None:
    order = Block(10_000, 50, 8)
    window = order.ids(seed=1, epoch=0, positions=np.arange(400))
    runs = np.flatnonzero(np.diff(np.sort(window)) > 1)
    assert len(runs) <= 8, "a window has its blocks and nothing else"
    assert (np.abs(np.diff(window)) == 1).mean() < 0.05, "its examples are mixed"


def test_classes_have_the_same_share_and_each_example_its_turn() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [2])
    order = Balanced(labels)
    found = np.concatenate([epoch_of(order, epoch=epoch) for epoch in range(3)])
    assert np.bincount(labels[found]).tolist() == [100, 100, 100]
    times = np.bincount(found, minlength=100)
    assert set(times[:90]) <= {1, 2}
    assert set(times[90:99]) <= {11, 12}


# labels, weights, and how far the count in any stretch may be from its share
SHARED = {
    "many classes": (np.repeat(np.arange(3000), 3), dict(enumerate(range(1, 3001))), 7),
    "a short epoch": (np.repeat([7, -2, 5], [15, 9, 6]), {7: 1.0, -2: 3.0}, 4),
    "classes that no thousandth fits": (np.arange(20_000) % 3, {0: 1.0, 1: 2.0, 2: 4.0}, 9),
    "one class beside many": (np.repeat(np.arange(2000), 5), {0: 2000.0} | dict.fromkeys(range(1, 2000), 1.0), 9),
    "a class each": (np.arange(5000)[::-1], dict.fromkeys(range(5000), 0.1), 7),
    "halves of halves": (np.repeat(np.arange(1080), 2), {label: 0.5**label for label in range(1080)}, 7),
    "labels of bool": (np.arange(300) % 3 == 0, {False: 1.0, True: 3.0}, 7),
    "a tiny share": (np.arange(1000) % 2, {0: 1.0, 1: 1e-9}, 2),
    "one example": (np.array([3]), {3: 2.0}, 0),
}


@pytest.mark.parametrize(("labels", "weights", "most"), SHARED.values(), ids=SHARED)
def test_shares_hold_over_any_stretch(labels: np.ndarray, weights: dict[int, float], most: float) -> None:
    order, total = Weighted(labels, weights), sum(weights.values())
    found = labels[np.concatenate([epoch_of(order, epoch=epoch) for epoch in range(5, 8)])]
    names = list(weights)
    sets = [*([name] for name in names[:: max(1, len(names) // 15)]), names[len(names) // 2 :], names[-1:]]
    for classes in sets:
        share = sum(weights[name] for name in classes) / total
        ahead = np.cumsum(np.isin(found, classes) - share)
        assert np.ptp([0, *ahead]) <= most + 1e-6, classes  # the largest difference of all stretches
        epochs = np.diff([0, *ahead[len(labels) - 1 :: len(labels)]])
        assert np.abs(epochs).max() <= 2, classes
    assert set(found.tolist()) <= set(names)


def test_a_tiny_share_comes_when_its_time_comes() -> None:
    """A share of 1e-5 of 1000 examples: once in a hundred epochs, and every example of the class before one again."""
    labels = np.arange(1000) % 2
    order = Weighted(labels, {0: 1.0, 1: 1e-5 / (1 - 1e-5)})
    found = np.concatenate([epoch_of(order, epoch=epoch) for epoch in range(1000)])
    rare = found[labels[found] == 1]
    assert len(rare) == len(set(rare.tolist())) == 10


def test_examples_of_a_class_come_all_before_one_comes_again() -> None:
    labels = np.repeat([0, 1, 2], [7, 2, 2000])
    order = Weighted(labels, {0: 3.0, 1: 1.0, 2: 2.0})
    found = np.concatenate([epoch_of(order, epoch=epoch) for epoch in range(3)])
    for label, members in ((0, 7), (1, 2), (2, 2000)):
        of_class = found[labels[found] == label]
        laps = of_class[: len(of_class) // members * members].reshape(-1, members)
        assert all(len(set(lap.tolist())) == members for lap in laps)
        assert members < 100 or len({tuple(lap.tolist()) for lap in laps}) == len(laps), "each lap has its own order"


def test_neighbours_are_others_each_time() -> None:
    """Equal weights on 1024 classes: a batch has another set of classes each time."""
    labels = np.repeat(np.arange(1024), 16)
    found = labels[epoch_of(Weighted(labels, dict.fromkeys(range(1024), 1.0)))]
    batches = [set(batch.tolist()) for batch in found.reshape(-1, 64)]
    with_zero = [batch for batch in batches if 0 in batch]
    assert len(with_zero) >= 15
    assert max(len(a & b) for i, a in enumerate(with_zero) for b in with_zero[:i]) < 20


def test_names_tell_orders_apart() -> None:
    names = {order.name for order, *_ in GOLDEN}
    assert len(names) == 6
    kinds: list[Callable[[np.ndarray], Order]] = [Balanced, lambda labels: Weighted(labels, {0: 1.0})]
    for made in kinds:
        assert made(LABELS).name != made(LABELS[::-1]).name
        assert len(made(np.arange(5000)).name) < 80
    assert Weighted(LABELS, {0: 1.0}).name == Weighted(LABELS, {0: 3.0, 1: 0.0}).name != Weighted(LABELS, {1: 1.0}).name


@pytest.mark.parametrize(
    ("weights", "kind", "name", "received"),
    [
        ({3: 1.0}, ConfigError, "weights", [3]),
        ({0: 0.0}, ConfigError, "weights", {0: 0.0}),
        ({}, ConfigError, "weights", {}),
        ({0: -1.0}, ConfigError, "weight of 0", -1.0),
        ({0: float("nan")}, ConfigError, "weight of 0", float("nan")),
        ({0: "1"}, ConfigTypeError, "weight of 0", "1"),
        ({1.5: 1.0}, ConfigTypeError, "a label of order", 1.5),
        ({"one": 1.0}, ConfigTypeError, "a label of order", "one"),
    ],
)
def test_weights_that_cannot_be_kept_are_refused(
    weights: dict[Any, Any], kind: type[ConfigError], name: str, received: object
) -> None:
    with refused(kind, name=name, received=received):
        Weighted(LABELS, weights)


def test_randomness_of_augmentation_differs_by_example_epoch_and_seed() -> None:
    ids = np.arange(50_000)
    words = [seeds_of(ids, seed=s, epoch=e) for s, e in ((1, 0), (1, 1), (2, 0))]
    assert len(np.unique(np.concatenate(words), axis=0)) == 150_000
    assert seeds_of(ids[:0], seed=1, epoch=0).shape == (0, 2)


def test_threads_compute_a_block_once() -> None:
    computed: list[int] = []
    ready = threading.Barrier(4)

    class Counted(Full):
        def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
            computed.append(len(positions))
            return super().ids(seed=seed, epoch=epoch, positions=positions)

    blocks = InBlocks(Counted(5000), seed=3)

    def first() -> Ids:
        ready.wait()
        return blocks.ids(2, np.arange(10))

    with ThreadPoolExecutor(4) as pool:
        found = [future.result().tolist() for future in [pool.submit(first) for _ in range(4)]]
    assert found == [Full(5000).ids(seed=3, epoch=2, positions=np.arange(10)).tolist()] * 4
    assert computed == [5000]
