"""Orders: what they compute is pinned for ever, is a permutation where it must be one, and looks random."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.data.order.orders import Block, Full, Order, Sequential, Weighted, seeds_of
from tfdist.errors import ConfigError

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
    (Weighted(LABELS), 17, 0, [7, 10, 47, 26, 88, 94, 2, 97, 20, 48, 33, 8]),
    (Weighted(LABELS, {0: 0.25, 1: 0.75}), 17, 2, [9, 9, 47, 37, 89, 0, 55, 8, 90, 38, 28, 28]),
    (Sequential(5), 17, 2, [0, 1, 2, 3, 4]),
]


def epoch_of(order: Order, *, seed: int = 3, epoch: int = 1) -> np.ndarray:
    return order.ids(seed=seed, epoch=epoch, positions=np.arange(order.examples))


@pytest.mark.parametrize(("order", "seed", "epoch", "expected"), GOLDEN, ids=lambda value: getattr(value, "name", None))
def test_the_order_is_what_it_always_was(order: Order, seed: int, epoch: int, expected: list[int]) -> None:
    positions = np.arange(len(expected))
    assert order.ids(seed=seed, epoch=epoch, positions=positions).tolist() == expected


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
        assert order.is_permutation
        assert (np.sort(found) == np.arange(examples)).all(), order.name


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_position_does_not_depend_on_what_it_is_asked_with(data: st.DataObject) -> None:
    examples = data.draw(st.integers(1, 6000))
    labels = np.arange(examples) % 7
    order = data.draw(st.sampled_from([Full(examples), Block(examples, 5, 4), Weighted(labels)]))
    positions = np.array(data.draw(st.lists(st.integers(0, examples - 1), max_size=20)), np.int64)
    assert (order.ids(seed=3, epoch=1, positions=positions) == epoch_of(order)[positions]).all()


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
    order = Weighted(labels)
    found = np.concatenate([epoch_of(order, epoch=epoch) for epoch in range(3)])
    assert np.bincount(labels[found]).tolist() == [100, 100, 100]
    times = np.bincount(found, minlength=100)
    assert set(times[:90]) <= {1, 2}
    assert set(times[90:99]) <= {11, 12}
    assert not order.is_permutation


def test_weights_hold_to_one_slot_and_leave_out_what_is_not_named() -> None:
    labels = np.array([7] * 500 + [-2] * 300 + [5] * 200)
    order = Weighted(labels, {7: 1, -2: 3})
    found = labels[epoch_of(order)]
    assert (found == 7).sum() == 250
    assert (found == -2).sum() == 750


def test_a_tiny_weight_is_not_lost() -> None:
    labels = np.arange(1000) % 2
    found = labels[epoch_of(Weighted(labels, {0: 1.0, 1: 1e-9}))]
    assert 1 <= found.sum() <= 2


def test_names_tell_orders_apart() -> None:
    names = {order.name for order, *_ in GOLDEN}
    assert len(names) == 6
    assert Weighted(LABELS).name != Weighted(LABELS[::-1]).name
    assert len(Weighted(np.arange(5000)).name) < 80


@pytest.mark.parametrize(
    ("weights", "word"),
    [({3: 1.0}, r"labels \[3\]"), ({0: 0.0}, "above 0"), ({0: -1.0}, "at least 0"), ({0: float("nan")}, "finite")],
)
def test_weights_that_cannot_be_kept_are_refused(weights: dict[int, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Weighted(LABELS, weights)


def test_randomness_of_augmentation_differs_by_example_epoch_and_seed() -> None:
    ids = np.arange(50_000)
    words = [seeds_of(ids, seed=s, epoch=e) for s, e in ((1, 0), (1, 1), (2, 0))]
    assert len(np.unique(np.concatenate(words), axis=0)) == 150_000
    assert seeds_of(ids[:0], seed=1, epoch=0).shape == (0, 2)
