"""The kernels of codecs: the bits of TensorFlow's operations, nothing read that is not there, none where unwanted."""

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.errors import TfdistError
from tfdist.native import build_target, library
from tfdist.variables import NATIVE

tf = pytest.importorskip("tensorflow")

from tfdist.compression import QSGD, ErrorFeedback, Natural, OneBit, PowerSGD, SignSGD, TernGrad, TopK  # noqa: E402
from tfdist.compression import kernels as module  # noqa: E402
from tfdist.compression.codecs.sparse import largest  # noqa: E402
from tfdist.optimizers import DistributedOptimizer  # noqa: E402

pytestmark = pytest.mark.quick

CHECKS = Path(__file__).parents[1] / "native" / "codecs"
SEED = (5, -7)
SHARED = 270_000  # numbers of a row, of which a second thread does some
CODECS = (
    Natural(),
    *(QSGD(bits=bits) for bits in (2, 4, 8)),
    QSGD(group=32),
    QSGD(bits=4, group=32, norm="largest"),
    QSGD(group=32 * 37),  # whose halves are odd
    TernGrad(),
    TernGrad(clip=1.5),
    SignSGD(),
    OneBit(),
    OneBit(group=96),
    *(TopK(density=density) for density in (1e-6, 0.01, 0.3, 1)),
)

Ways = Callable[[Callable[[], Any]], tuple[Any, Any]]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Return a function that runs another one in a graph of kernels, and in one of TensorFlow's operations."""

    def run(function: Callable[[], Any]) -> tuple[Any, Any]:
        ends = []
        for switch in ("1", "0"):
            monkeypatch.setenv(NATIVE.name, switch)
            assert (module.kernels() is not None) == (switch == "1")
            ends.append(tf.function(function)().numpy())
        return ends[0], ends[1]

    return run


def hard(count: int) -> np.ndarray:
    """Rows of numbers that are easy to get wrong, each of another kind."""
    random = np.random.default_rng(count)
    rows = random.standard_normal((10, count), np.float32)
    with np.errstate(over="ignore"):
        rows[1:4] *= np.array([[1e38], [1e-20], [3e-38]], np.float32)
    rows[4] = 0
    rows[5] = -0.0
    rows[6, ::5] = np.nan
    rows[7, 3::7] = np.inf
    rows[8, 1::8] = -np.inf
    rows[9] = np.round(rows[9])
    return rows


def are_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one.view(np.int32) == other.view(np.int32)) | (np.isnan(one) & np.isnan(other))


@pytest.mark.thorough
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_words_and_numbers_are_equal_bit_for_bit(ways: Ways, codec: Any) -> None:
    """Rows have one group, a few, and so many that several threads share them."""
    whole = SHARED // codec.row_multiple + 1
    for rows in (hard(codec.row_multiple), hard(7 * codec.row_multiple), hard(whole * codec.row_multiple)[[0, 6]]):
        require_equal(ways, codec, rows)


def require_equal(ways: Ways, codec: Any, rows: np.ndarray) -> None:
    count = rows.shape[1]
    given = tf.constant(rows)  # an input of the graphs; of what is constant in them, TensorFlow computes all twice
    words, expected = ways(lambda: codec.encode(given, SEED))
    assert words.shape == (len(rows), codec.row_words(count))
    np.testing.assert_array_equal(words, expected)
    coded = tf.constant(words)
    numbers, expected = ways(lambda: codec.decode(coded, count))
    assert numbers.shape == rows.shape
    assert are_same(numbers, expected).all()


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 31, 997, 100_003])
def test_the_largest_are_exactly_k_and_of_equal_ones_the_first(ways: Ways, count: int) -> None:
    rows = np.concatenate([hard(count), np.random.default_rng(1).integers(-3, 4, (1, count)).astype(np.float32)])
    sizes = (rows.view(np.int32) & 0x7FFFFFFF).astype(np.int64)
    order, given = np.argsort(-sizes, axis=1, kind="stable"), tf.constant(rows)
    for k in sorted({1, count // 100 or 1, count // 2 or 1, count}):
        words, expected = ways(functools.partial(largest, given, tf.constant(k)))
        np.testing.assert_array_equal(words, expected)
        np.testing.assert_array_equal(words[:, :k], np.sort(order[:, :k], axis=1))
        np.testing.assert_array_equal(words[:, k:], np.take_along_axis(rows, words[:, :k], axis=1).view(np.int32))


def test_shapes_are_known_in_a_graph_and_eager_calls_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE.name, "1")
    rows = np.random.default_rng(0).standard_normal((2, 1184 * 6)).astype(np.float32)
    for codec in CODECS:
        if rows.shape[1] % codec.row_multiple:
            continue
        encode = tf.function(lambda given, codec=codec: codec.encode(given, SEED)).get_concrete_function(rows)
        assert encode.structured_outputs.shape == [2, codec.row_words(rows.shape[1])]
        words = codec.encode(rows, SEED)
        np.testing.assert_array_equal(encode(tf.constant(rows)), words)
        decode = tf.function(lambda given, codec=codec: codec.decode(given, rows.shape[1])).get_concrete_function(words)
        assert decode.structured_outputs.shape == rows.shape
        np.testing.assert_array_equal(decode(words), codec.decode(words, rows.shape[1]))


def wrong_calls() -> dict[str, Callable[[Any], Any]]:
    """Calls of ops with shapes and options that do not fit."""
    rows, words = tf.zeros([2, 64]), tf.zeros([2, 18], tf.int32)
    scales, key, counter = tf.zeros([2, 2]), tf.zeros([1], tf.uint64), tf.zeros([2], tf.uint64)

    def levels(ops: Any, group: int = 32, bits: int = 8, **other: Any) -> Any:
        return ops.tfdist_to_levels(
            **{"rows": rows, "scales": scales, "key": key, "counter": counter, **other}, group=group, bits=bits
        )

    return {
        "no matrix": lambda ops: ops.tfdist_to_signs(tf.zeros([64])),
        "no whole words of signs": lambda ops: ops.tfdist_to_signs(tf.zeros([2, 33])),
        "no whole groups": lambda ops: ops.tfdist_group_sums(rows, group=96, of=0),
        "no group": lambda ops: ops.tfdist_group_largest(rows, group=0),
        "less than no group": lambda ops: ops.tfdist_group_largest(rows, group=-32),
        "nothing to add up": lambda ops: ops.tfdist_group_sums(rows, group=32, of=4),
        "three bits": lambda ops: levels(ops, bits=3),
        "groups and scales": lambda ops: levels(ops, group=64),
        "one row of scales": lambda ops: levels(ops, scales=tf.zeros([1, 2])),
        "half a counter": lambda ops: levels(ops, counter=counter[:1]),
        "two keys": lambda ops: levels(ops, key=counter),
        "a counter that has begun": lambda ops: levels(ops, counter=tf.ones([2], tf.uint64)),
        "half a group of levels": lambda ops: ops.tfdist_from_levels(words, scales, group=32, bits=8),
        "too few scales": lambda ops: ops.tfdist_from_levels(words[:, :16], scales[:, :1], group=32, bits=8),
        "levels of no group": lambda ops: ops.tfdist_from_levels(words[:, :16], scales, group=0, bits=8),
        "levels of no bits": lambda ops: ops.tfdist_from_levels(words[:, :16], scales, group=32, bits=0),
        "half a group of signs": lambda ops: ops.tfdist_from_signs(words[:, :3], scales, scales, group=64),
        "too few numbers": lambda ops: ops.tfdist_from_signs(words[:, :2], scales, scales[:, :1], group=32),
        "no powers": lambda ops: ops.tfdist_from_powers(words[:, :17]),
        "more than there are": lambda ops: ops.tfdist_largest(rows, 65),
        "fewer than none": lambda ops: ops.tfdist_largest(rows, -1),
        "k for each row": lambda ops: ops.tfdist_largest(rows, [1, 2]),
    }


@pytest.mark.parametrize("what", wrong_calls())
def test_what_does_not_fit_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE.name, "1")
    with pytest.raises(tf.errors.InvalidArgumentError):
        wrong_calls()[what](module.kernels())


def test_nothing_is_made_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE.name, "1")
    for codec in CODECS[:-4]:
        assert codec.encode(tf.zeros([0, codec.row_multiple]), SEED).shape == [0, codec.row_words(codec.row_multiple)]
        assert codec.decode(codec.encode(tf.zeros([3, 0]), SEED), 0).shape == [3, 0]


def test_an_optimizer_compiles_before_its_first_step_and_does_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def load(of: library.Library, made: Any) -> Any:
        asked.append(of.name)
        raise TfdistError("there is no compiler")

    monkeypatch.setenv(NATIVE.name, "1")
    monkeypatch.setattr(library, "load", load)
    monkeypatch.setattr(module, "_loaded", functools.cache(module._loaded.__wrapped__))
    DistributedOptimizer("sgd", compression=PowerSGD())
    assert asked == []
    DistributedOptimizer("sgd", compression=ErrorFeedback(codec=TopK()))
    DistributedOptimizer("sgd", compression="qsgd-4")
    assert asked == ["codecs"]
    (said,) = caplog.records
    assert "there is no compiler" in said.message
    assert QSGD().encode(tf.zeros([1, 512]), SEED).shape == [1, 129]


@pytest.mark.thorough
def test_by_themselves_under_a_sanitizer(tmp_path: Path) -> None:
    """Nothing is read or written outside of rows, and what C++ leaves undefined is not done; see the program."""
    compiler = build_target.find_program(os.environ, "CXX", *build_target.COMPILERS)
    assert compiler is not None
    core = [path for path in library.CODECS.sources("*.cc") if path.name != "ops.cc"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    command = [compiler, *flags, *library.CODECS.flags[1:], *map(str, core), *map(str, CHECKS.glob("*.cc"))]
    subprocess.run(
        [*command, "-fno-sanitize-recover=undefined", "-o", str(tmp_path / "check")], check=True, timeout=600
    )
    done = subprocess.run([tmp_path / "check"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "codecs: ok\n"), done.stderr
