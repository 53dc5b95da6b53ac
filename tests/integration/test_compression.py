"""Codecs of gradients: one battery over all of them, members side by side in this process."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.agents import says
from tests.integration.forks import Forks
from tests.refusals import refused
from tfdist.compression import (
    DGC,
    QSGD,
    Auto,
    BFloat16,
    Codec,
    ErrorFeedback,
    Float16,
    Natural,
    OneBit,
    PowerSGD,
    RandomK,
    SignSGD,
    TernGrad,
    Threshold,
    TopK,
    Whole,
    messages,
    one_way,
    registry,
)
from tfdist.compression.auto import Cost, Measured, chosen, described, is_due, predicted
from tfdist.compression.codec import RowCodec, row_length
from tfdist.compression.codec_exchange import together
from tfdist.compression.messages import AllGather, AllReduce, AllToAll, Context, Exchanged, Total
from tfdist.errors import ConfigError, ConfigTypeError, TfdistError
from tfdist.gradients.reduction import codec_plan
from tfdist.gradients.reduction.codec_plan import Memory, Plan
from tfdist.gradients.reduction.compressed_reducer import is_compressed
from tfdist.optimizers import DistributedOptimizer
from tfdist.planner.planner_link import Link

CASES = str(Path(__file__).parent / "cases" / "compression_cases.py")
DRAWS = 100_000
CODECS = [registry.codec_of(name) for name in registry.names() if name != "auto"]
UNBIASED = [
    *(Natural(), QSGD(bits=2, group=32), QSGD(bits=4, group=32), QSGD(bits=8, group=32), TernGrad(group=32)),
    QSGD(bits=4, group=32, norm="largest"),
]
EXACT = [
    RandomK(density=1.0),
    TopK(density=1.0),
    DGC(density=1.0, momentum=0.0),
]
ANY = settings(max_examples=8, deadline=None, database=None)

pytestmark = pytest.mark.quick


@functools.cache  # to draw the seeds takes half as long as what a codec does
def context_of(rank: int, size: int, step: int) -> Context:
    return messages.context_of(rank, size, step=step)


def named(codec: Codec) -> str:
    return f"{codec.shown}-{getattr(codec, 'bits', '')}".strip("-")


class Members:
    """The members of a group, and what each remembers."""

    def __init__(self, codec: Codec, shape: tuple[int, ...], size: int, dtype: tf.DType = tf.float64) -> None:
        self.codec, self.size, self.steps = codec, size, 0
        initial = tuple(one.initial for one in codec.init(tf.TensorSpec(shape, dtype)))
        self.states = [initial] * size

    def step(self, gradients: list[Any]) -> list[Exchanged]:
        contexts = [context_of(rank, self.size, self.steps) for rank in range(self.size)]
        ends = together(
            [
                self.codec.exchange(tf.constant(gradient), state, context)
                for gradient, state, context in zip(gradients, self.states, contexts, strict=True)
            ]
        )
        self.states = [end.state for end in ends]
        self.steps += 1
        return ends

    def held_back(self) -> np.ndarray:
        """Return the sum of the gradients that the members remember."""
        memory = 1 if self.codec.shown == "dgc" else 0
        return sum(state[memory].numpy() for state in self.states)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize(("shape", "size"), [((1, 1), 2), ((7, 11), 3), ((64, 33), 2)])
def test_members_come_to_the_same_and_nothing_is_lost(codec: Codec, shape: tuple[int, ...], size: int) -> None:
    """Whatever a codec sends and holds back adds up to the gradients, and every member has the same bits."""
    members, given_in_all, arrived = Members(codec, shape, size), np.zeros(shape), np.zeros(shape)
    for step in range(4):
        gradients = [normal(*shape, seed=100 * step + rank) * 10.0**-step for rank in range(size)]
        ends = members.step(gradients)
        totals = [end.total.numpy() for end in ends]
        assert all(np.array_equal(total, totals[0]) for total in totals)
        if codec.accuracy != "rounded":
            np.testing.assert_allclose(sum(end.sent.numpy() for end in ends), totals[0], rtol=0, atol=1e-12)
        given_in_all, arrived = given_in_all + sum(gradients), arrived + totals[0]
    if codec.accuracy == "biased" and codec.shown != "dgc":
        np.testing.assert_allclose(arrived + members.held_back(), given_in_all, rtol=0, atol=1e-12)


@pytest.mark.parametrize("codec", UNBIASED, ids=named)
def test_the_mean_of_what_is_drawn_is_the_number(codec: RowCodec) -> None:
    """Over 100,000 draws, within five standard deviations; the variance is under the bound of its authors."""
    numbers = np.concatenate([normal(24).astype("f"), [0.0, 1e-3, -1e20 if codec.name == "natural" else 3.0]])
    row = np.pad(numbers, (0, 32 - len(numbers))).astype("f")
    rows = tf.tile(row[np.newaxis], [DRAWS, 1])
    drawn = codec.decode(codec.encode(rows, tf.constant([3, 4])), 32).numpy().astype("d")
    deviation = drawn.std(axis=0)
    off = np.abs(drawn.mean(axis=0) - row) - 5 * deviation / DRAWS**0.5
    assert np.all(off <= 1e-6 * np.abs(row)), "the mean is another one"
    assert np.sum(deviation**2) <= 1.01 * bound(codec, row.astype("d"))


def bound(codec: RowCodec, row: np.ndarray) -> float:
    square = float(np.sum(row**2))
    if isinstance(codec, Natural):
        return square / 8
    if isinstance(codec, TernGrad):
        return float(np.max(np.abs(row)) * np.sum(np.abs(row)) - square)
    if isinstance(codec, QSGD) and codec.norm == "largest":  # that of a draw between two levels
        return len(row) * float(np.max(np.abs(row)) / codec.levels / 2) ** 2
    return min(len(row) / codec.levels**2, len(row) ** 0.5 / codec.levels) * square


@pytest.mark.parametrize("codec", EXACT, ids=named)
@ANY
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40))
def test_what_sends_all_loses_nothing(codec: Codec, size: int, rows: int, columns: int) -> None:
    members = Members(codec, (rows, columns), size, tf.float32)
    for step in range(2):
        gradients = [normal(rows, columns, seed=10 * step + rank).astype("f") for rank in range(size)]
        for end in members.step(gradients):
            np.testing.assert_allclose(end.total, sum(gradients), rtol=1e-5, atol=1e-5)


def test_dgc_that_sends_all_is_sgd_with_momentum() -> None:
    members = Members(DGC(density=1.0, momentum=0.9), (6, 5), 2)
    velocity = np.zeros((6, 5))
    for step in range(5):
        gradients = [normal(6, 5, seed=10 * step + rank) for rank in range(2)]
        velocity = 0.9 * velocity + sum(gradients)
        np.testing.assert_allclose(members.step(gradients)[0].total, velocity, rtol=1e-5, atol=1e-6)


def test_dgc_sends_more_in_its_warm_up_and_forgets_the_momentum_of_what_it_sends() -> None:
    codec = DGC(density=0.01, factor_masking=True, warm_up_steps=8)
    members = Members(codec, (1000, 2), 2)
    counts = []
    for step in range(10):
        end, _ = members.step([normal(1000, 2, seed=10 * step + rank) for rank in range(2)])
        counts.append(np.count_nonzero(end.total))
        momentum = members.states[0][0].numpy()
        assert np.count_nonzero(momentum == 0) >= 0.9 * counts[-1] / 2
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (500, 20)


@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (3, 3, 4, 8), (5, 1)])
def test_power_sgd_of_full_rank_loses_nothing(shape: tuple[int, ...]) -> None:
    gradients = [normal(*shape, seed=rank) for rank in range(2)]
    end, other = Members(PowerSGD(rank=100), shape, 2).step(gradients)
    np.testing.assert_allclose(end.total, sum(gradients), rtol=1e-5, atol=1e-5)
    assert np.array_equal(end.total, other.total)


def test_power_sgd_comes_to_span_what_is_largest() -> None:
    left, _, right = np.linalg.svd(normal(40, 30))
    matrix = left[:, :30] @ np.diag(0.8 ** np.arange(30)) @ right
    members = Members(PowerSGD(rank=2), (40, 30), 2)
    for _ in range(20):
        end, _ = members.step([matrix / 2, matrix / 2])
    found, *_ = np.linalg.svd(end.total.numpy())
    cosines = np.linalg.svd(found[:, :2].T @ left[:, :2], compute_uv=False)
    assert np.all(cosines > 0.999)


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize("value", [0.0, 1e-42, 1e-30, 1e30, -1.0])
def test_numbers_of_every_size(codec: Codec, value: float) -> None:
    """Zeros stay zeros; signs are right; what is tiny does not become noise; what is too large is not made up.

    Squares of numbers beyond 1e19 are beyond float32: codecs that need a norm then return what is not finite.
    """
    gradients = [np.full((40, 16), value, "f")] * 2
    end, _ = Members(codec, (40, 16), 2, tf.float32).step(gradients)
    total = end.total.numpy()
    if value == 1e30 and codec.shown in ("float16", "powersgd", "qsgd"):
        assert not np.any(np.isfinite(total) & (total != 0))
        return
    assert np.all(np.isfinite(total))
    assert np.all(total * np.sign(value) >= 0)
    assert np.max(np.abs(total)) <= max(abs(value) * 2 * 512, 1e-37)  # 2 bits of QSGD: the norm of 512 numbers, twice


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize("size", [2, 4])
def test_the_formula_counts_what_is_sent(codec: Codec, size: int) -> None:
    """`wire_bytes` is what the messages hold, without headers, to 2 %."""
    shape = (500, 96)
    gradient = normal(*shape).astype("f")
    state = tuple(one.initial for one in codec.init(tf.TensorSpec(shape, tf.float32)))
    exchange, answer, sent = codec.exchange(tf.constant(gradient), state, messages.context_of(0, size)), None, 0.0
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration:
            break
        if isinstance(request, AllReduce):
            sent += 2 * (size - 1) / size * tf.size(request.tensor).numpy() * request.tensor.dtype.size
            answer = Total(request.tensor, request.tensor)
        elif isinstance(request, AllToAll):
            sent += (size - 1) / size * tf.size(request.rows).numpy() * 4
            answer = request.rows
        else:
            assert isinstance(request, AllGather)
            sent += (size - 1) * tf.size(request.rows).numpy() * 4
            answer = tf.tile(request.rows, [size, 1])
    expected = codec.wire_bytes(tf.TensorSpec(shape, tf.float32), size)
    if codec.shown == "threshold":  # as much as there is news
        return
    assert sent == pytest.approx(expected, rel=0.02)


def test_the_memory_follows_the_learning_rate_where_its_authors_remember_updates() -> None:
    codec = registry.codec_of("signsgd")
    gradient, memory = tf.ones([32, 32]), tf.fill([32, 32], 2.0)
    slower = messages.context_of(0, 1, slower=tf.constant(0.5))  # the learning rate has doubled
    (end,) = together([codec.exchange(gradient, (memory,), slower)])
    np.testing.assert_allclose(end.total + end.state[0], np.full((32, 32), 2.0))
    (end,) = together([registry.codec_of("onebit").exchange(gradient, (memory,), slower)])
    np.testing.assert_allclose(end.total + end.state[0], np.full((32, 32), 3.0))


@pytest.mark.parametrize("codec", [one for one in CODECS if one_way.goes_one_way(one)], ids=named)
def test_one_way(codec: Codec) -> None:
    """The chief decodes exactly what a worker has encoded for parameter servers, finite or not."""
    numbers = tf.constant(normal(30, 7).astype("f"))
    spec = tf.TensorSpec([30, 7], tf.float32)
    arrived = one_way.received(codec, one_way.sent(codec, numbers), spec)
    assert np.linalg.norm(arrived - numbers) <= 8 * np.linalg.norm(numbers)
    np.testing.assert_array_equal(arrived, one_way.received(codec, one_way.sent(codec, numbers), spec))
    bad = tf.tensor_scatter_nd_update(numbers, [[3, 3]], [float("nan")])
    assert not np.all(np.isfinite(one_way.received(codec, one_way.sent(codec, bad), spec)))


@pytest.mark.parametrize(
    "codec", [*CODECS, Auto(within="unbiased"), registry.codec_of(Float16(codec=PowerSGD(rank=3)))], ids=named
)
def test_saved_and_loaded(codec: Codec) -> None:
    optimizer = DistributedOptimizer("sgd", compression=codec)
    again = DistributedOptimizer.from_config(optimizer.get_config())
    assert again.compression == (None if codec == Whole() else codec)


def test_a_biased_codec_that_is_rounded_as_well_has_a_memory() -> None:
    codec = registry.codec_of(Float16(codec=PowerSGD(rank=2)))
    assert (type(codec), codec.codec) == (ErrorFeedback, Float16(codec=PowerSGD(rank=2)))
    assert registry.codec_of(Float16()) == Float16()


def test_options_of_the_codec_inside_hold_for_the_memory_around_it() -> None:
    codec = registry.codec_of(PowerSGD(rank=2, start_after=100, min_saving=3.0))
    assert (type(codec), codec.start_after, codec.min_saving) == (ErrorFeedback, 100, 3.0)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1000, 10), tf.float32, True),
        ((1000,), tf.float32, False),
        ((4, 4), tf.float32, False),
        ((), tf.float32, False),
        ((1000, 10), tf.int32, False),
        ((0, 10), tf.float32, False),
        ((1000, 10), tf.bfloat16, False),  # 16 bits already: QSGD's 8 save too little
    ],
)
def test_what_is_compressed(shape: tuple[int, ...], dtype: tf.DType, expected: bool) -> None:
    assert is_compressed(QSGD(bits=8), tf.TensorSpec(shape, dtype)) is expected


@pytest.mark.parametrize(
    ("make", "kind", "name", "received"),
    [
        (lambda: DistributedOptimizer("sgd", compression="powersdg"), ConfigError, "compression", "powersdg"),
        (lambda: DistributedOptimizer("sgd", compression=PowerSGD), ConfigTypeError, "compression", PowerSGD),
        (lambda: DistributedOptimizer("sgd", compression=3), ConfigTypeError, "compression", 3),
        (lambda: DistributedOptimizer("adam", compression="dgc"), ConfigError, "compression", "dgc"),
        (
            lambda: DistributedOptimizer(keras.optimizers.SGD(momentum=0.9), compression="dgc"),
            ConfigError,
            "momentum",
            0.9,
        ),
        (
            lambda: DistributedOptimizer("sgd", compression="topk", wire_dtype="float16"),
            ConfigError,
            "wire_dtype",
            "float16",
        ),
        (
            lambda: DistributedOptimizer("sgd", compression="topk", reduction="adasum"),
            ConfigError,
            "reduction",
            "adasum",
        ),
        (lambda: QSGD(bits=3), ConfigError, "bits", 3),
        (lambda: QSGD(group=33), ConfigError, "group", 33),
        (lambda: QSGD(norm="l1"), ConfigError, "norm", "l1"),
        (lambda: TopK(density=0.0), ConfigError, "density", 0.0),
        (lambda: TopK(density=2), ConfigError, "density", 2),
        (lambda: PowerSGD(rank=0), ConfigError, "rank", 0),
        (lambda: PowerSGD(start_after=-1), ConfigError, "start_after", -1),
        (lambda: Threshold(threshold=float("nan")), ConfigError, "threshold", "nan"),
        (lambda: ErrorFeedback(codec=DGC()), ConfigError, "codec", DGC()),
        (lambda: Auto(within="some"), ConfigError, "within", "some"),
        (lambda: Auto(candidates=[DGC()]), ConfigError, "candidates", DGC()),
        (lambda: registry.from_config({"name": "mine"}), ConfigError, "codec", "mine"),
    ],
)
def test_wrong_options(make: Callable[[], Any], kind: type[TfdistError], name: str, received: object) -> None:
    with refused(kind, name=name, received=received):
        make()


@pytest.mark.parametrize(("elements", "word"), [(1 << 30, tf.int32), ((1 << 30) + 1, tf.int64)])
def test_a_word_has_room_for_the_last_place(elements: int, word: tf.DType) -> None:
    context = context_of(0, 2, step=0)
    with tf.Graph().as_default():
        tensor = tf.compat.v1.placeholder(tf.float32, [elements])
        request = next(Threshold().exchange(tensor, (), context))
    assert isinstance(request, AllGather)
    assert request.rows.dtype == word


def test_rows_are_full() -> None:
    for codec in (Natural(), QSGD(), TernGrad(), SignSGD(), OneBit(), TopK(), BFloat16()):
        if isinstance(codec, RowCodec):
            count = row_length(1000, 3, codec.row_multiple)
            words = codec.encode(tf.zeros([3, count]), tf.constant([1, 2]))
            assert words.shape == (3, codec.row_words(count))
            assert codec.decode(words, count).shape == (3, count)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", ["resumed_at_every_step", "another_number_of_replicas", "not_finite", "nothing_to_compress"]
)
def test_under_a_strategy(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(CASES, case, str(tmp_path)) == 0, forking.output[-3000:]


def measured(link: Link, costs: list[Cost], *, members: int = 2) -> Measured:
    options = [Whole(), Natural(), PowerSGD(rank=4)]
    return Measured(options=options, costs=[Cost(), *costs], link=link, members=members, bucket_bytes=1 << 22)


SLOW = Link(latency_seconds=5e-4, bytes_per_second=12.5e6)  # 100 Mbit/s
FAST = Link(latency_seconds=5e-5, bytes_per_second=1e9)  # 8 Gbit/s
LARGE = {place: tf.TensorSpec([1024, 1024], tf.float32) for place in range(3)}
SMALL = {0: tf.TensorSpec([32, 128], tf.float32), 1: tf.TensorSpec([128, 10], tf.float32)}
NATURAL, POWER_SGD = Cost(1e-4, 4e-9), Cost(1e-3, 4e-9)


@pytest.mark.parametrize(
    ("specs", "link", "costs", "wanted"),
    [
        (LARGE, SLOW, [NATURAL, POWER_SGD], 2),
        (LARGE, FAST, [NATURAL, POWER_SGD], 0),  # what is saved on the wire is lost in computing
        (SMALL, FAST, [NATURAL, POWER_SGD], 0),
        (SMALL, SLOW, [NATURAL, POWER_SGD], 0),  # 1.7 ms of wire: less than two fixed costs and another message
        (LARGE, SLOW, [NATURAL, Cost(1.0, 0.0)], 1),  # each tensor by itself costs a second
        (LARGE, SLOW, [NATURAL, Cost(0.084, 0.0)], 1),  # as good as the best, and comes first
        (LARGE, SLOW, [Cost(0.0, 1e-6), Cost(1.0, 0.0)], 0),
    ],
)
def test_what_is_chosen_comes_first_of_what_is_as_good_as_the_shortest(
    specs: dict[int, tf.TensorSpec], link: Link, costs: list[Cost], wanted: int
) -> None:
    given = measured(link, costs)
    choice = chosen(given, specs)
    assert choice == dict.fromkeys(specs, wanted)
    everything = itertools.product(range(3), repeat=len(specs))
    best = min(predicted(given, specs, dict(zip(specs, one, strict=True))).seconds for one in everything)
    assert 0.8 * predicted(given, specs, choice).seconds <= best


def test_a_choice_is_said_with_bytes_and_times() -> None:
    given = measured(SLOW, [NATURAL, POWER_SGD])
    said = described(given, LARGE, {0: 2, 1: 2, 2: 0})
    assert says(said, "none for 1", "powersgd for 2 ", "of 3 ", "4.26 MB", "12.6 MB")
    assert "(measured: 100 Mbit/s, 1 ms)" in said


def test_a_link_is_measured_again_when_that_is_a_hundredth_of_the_time() -> None:
    assert [is_due(since, 0.1) for since in (0.0, 9.9, 10.0)] == [False, False, True]


class Choosing:
    """A plan that chooses on a network whose links are set here; `measured_at` has the seconds of its measurements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.now, self.measured_at = SLOW, 0.0, []
        monkeypatch.setattr(codec_plan, "measured_link", self._measured)
        monkeypatch.setattr(codec_plan, "agreed_costs", lambda collective, codecs: [Cost()] * len(codecs))
        self._plan = Plan(Auto())
        self._memory = Memory(self._plan.options)
        self._memory.make(LARGE, len(LARGE), self._plan.counters(len(LARGE)))
        self._workers = SimpleNamespace(
            count=2, is_chief=False, collective=None, gather=np.array, waiting=lambda what: contextlib.nullcontext()
        )

    def _measured(self, collective: object, many_bytes: int) -> Link:
        self.measured_at.append(self.now)
        return self.link

    def epoch(self, now: float, link: Link = SLOW) -> bool:
        """Begin an epoch after so many seconds of training; return whether another codec is chosen."""
        self.now, self.link = now, link
        return self._plan.renew(self._workers, self._memory, LARGE, trained_seconds=now)


def test_only_training_counts_until_a_link_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing = Choosing(monkeypatch)
    for now in (0.0, 0.0, 1e-9, 9e9, 9e9):
        choosing.epoch(now)
    assert choosing.measured_at == [0.0, 9e9]


def test_another_link_is_believed_when_it_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing = Choosing(monkeypatch)
    fast = Link(latency_seconds=5e-5, bytes_per_second=1e12)  # on which no codec pays
    assert choosing.epoch(0.0)  # the first choice
    assert not choosing.epoch(9e9, fast)
    assert not choosing.epoch(9e9)  # it was the moment
    assert not choosing.epoch(9e9)
    assert not choosing.epoch(9e10, fast)
    assert choosing.epoch(9e10, fast)
    assert not choosing.epoch(9e10, fast)
    assert choosing.measured_at == [0.0, 9e9, 9e9, 9e10, 9e10]
