"""Stamps in a graph, by operations of our own and by TensorFlow's: the same rows, whichever writes them."""

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.errors import TfdistError
from tfdist.monitor.recording.graph_stamps import Rows, Stamps
from tfdist.monitor.recording.rows import LEAST_NORM, NORM_EVERY, ROWS_OF_STAMPS, STAMPS, Column
from tfdist.monitor.recording.stamp_rows import CompiledRows, OperationRows
from tfdist.native import build_target, library, stamp_ops
from tfdist.variables import NATIVE

tf = pytest.importorskip("tensorflow")

from tfdist.compat.tensorflow import traced_uses  # noqa: E402
from tfdist.gradients.reduction import norms  # noqa: E402

pytestmark = pytest.mark.quick

CHECKS = Path(__file__).parents[1] / "native" / "stamps"
FIRST = STAMPS[0]


def compiled() -> Rows:
    ops = stamp_ops.stamp_ops()
    assert ops is not None
    return CompiledRows(ops, traced_uses.independent)


@pytest.fixture(params=["compiled", "operations"])
def rows(request: pytest.FixtureRequest) -> Rows:
    return compiled() if request.param == "compiled" else OperationRows(traced_uses.independent)


def step_of(rows: Rows, *, scale: float | None = None) -> Callable[..., Any]:
    """A step that reduces each of its gradients by itself, and whose loss is their first number."""

    def step(*gradients: Any) -> Any:
        with Stamps(rows) as stamps:
            gradients = stamps.from_begin(gradients)
            loss = tf.cast(tf.reshape(getattr(gradients[0], "values", gradients[0]), [-1])[0], tf.float32)
            stamps.loss(loss)
            stamps.loss(loss + 1)  # the first one counts
            stamps.mark(Column.GRADIENTS, gradients)
            found = [stamps.reduction([one], lambda one=one: [one])[0] for one in gradients]
            stamps.mark(Column.REDUCED, found)
            factor = None if scale is None else tf.constant(scale, tf.float32)
            stamps.gradient_norm(norms.all_squares, found, scale=factor)
            stamps.end()
            return loss

    return step


def last(rows: Rows, count: int) -> np.ndarray:
    """The last rows, by the begin of their steps: one whose norm took long is whole later than the next."""
    written, ring = rows.read()
    assert ring.shape == (ROWS_OF_STAMPS, len(STAMPS))
    found = np.asarray(ring)[np.arange(written - count, written) % ROWS_OF_STAMPS]
    return found[np.argsort(column(found, Column.GRAPH_BEGIN), kind="stable")]


def column(found: np.ndarray, one: int) -> np.ndarray:
    return found[:, one - FIRST]


def test_data_goes_through_as_it_is(rows: Rows) -> None:
    @tf.function
    def step(dense: Any, sparse: Any) -> Any:
        with Stamps(rows) as stamps:
            found = stamps.from_begin(({"dense": dense, "none": None}, sparse, (None,)))
            stamps.end()
            return found

    sparse = tf.sparse.from_dense([[0.0, 1.0]])
    (named, same, none) = step(tf.constant([2.0]), sparse)
    assert (named["dense"].numpy().tolist(), named["none"], none) == ([2.0], None, (None,))
    assert tf.sparse.to_dense(same).numpy().tolist() == [[0.0, 1.0]]


def test_a_row_has_what_happened_in_its_order(rows: Rows) -> None:
    step = tf.function(step_of(rows))
    before = tf.timestamp().numpy()
    for number in range(5):
        step(tf.fill([3], float(number)), tf.ones([2, 2]), tf.ones([4]))
    after = tf.timestamp().numpy()
    assert rows.read()[0] == 5
    found = last(rows, 5)
    assert column(found, Column.LOSS).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert column(found, Column.REDUCTIONS).tolist() == [3.0] * 5
    begin, gradients, end = (column(found, one) for one in (Column.GRAPH_BEGIN, Column.GRADIENTS, Column.GRAPH_END))
    slack = 2e-6  # tf.timestamp has whole microseconds
    assert (before - slack <= begin).all()
    assert (column(found, Column.FORWARD) >= begin).all()
    for number in range(3):
        arrived, completed = (column(found, one + number) for one in (Column.ARRIVALS, Column.COMPLETIONS))
        assert (arrived >= begin).all()
        assert (completed >= begin).all()
        assert (completed <= after + slack).all()
    assert (column(found, Column.ARRIVALS + 3) == 0).all()
    assert (gradients >= begin).all()
    assert (begin[1:] >= end[:-1] - slack).all()


def test_the_end_waits_for_all_that_has_effects(rows: Rows) -> None:
    variable = tf.Variable(0.0)
    seconds = 0.02

    def slept(value: Any) -> Any:
        threading.Event().wait(seconds)
        return value

    @tf.function
    def step() -> Any:
        with Stamps(rows) as stamps:
            stamps.loss(tf.constant(1.0))
            value = stamps.from_begin(variable + 1.0)
            variable.assign(tf.numpy_function(slept, [value], tf.float32))
            stamps.end()

    step()
    step()
    assert variable.numpy() == 2.0
    found = last(rows, 2)
    assert (column(found, Column.GRAPH_END) - column(found, Column.GRAPH_BEGIN) >= seconds).all()


def test_steps_in_a_loop_have_a_row_each(rows: Rows) -> None:
    step = step_of(rows)

    @tf.function
    def steps() -> None:
        for number in tf.range(7):
            step(tf.fill([3], tf.cast(number, tf.float32)))

    steps()
    assert column(last(rows, 7), Column.LOSS).tolist() == list(range(7))


def measured(rows: Rows, gradients: Sequence[Any], scale: float | None = None) -> float:
    """The norm that one of a number of steps has measured."""
    before = rows.read()[0]
    assert before % NORM_EVERY == 0
    step = tf.function(step_of(rows, scale=scale))
    for _ in range(NORM_EVERY):
        step(*gradients)
    found = column(last(rows, NORM_EVERY), Column.GRADIENT_NORM)
    assert (found[1:] == 0).all()
    return float(found[0])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 33, 300_000])  # the last one in threads
def test_the_norm_is_measured_in_one_step_of_so_many(rows: Rows, dtype: str, count: int) -> None:
    random = np.random.default_rng(count)
    gradients = [tf.cast(random.normal(0, 3, size), dtype) for size in ([count], [2, 5])]
    numbers = np.concatenate([np.ravel(one.numpy().astype(np.float64)) for one in gradients])
    assert measured(rows, gradients) == pytest.approx(np.linalg.norm(numbers), rel=1e-5)
    assert measured(rows, gradients, scale=256.0) == pytest.approx(np.linalg.norm(numbers) / 256, rel=1e-5)


def test_the_norm_of_rows_of_a_table(rows: Rows) -> None:
    rows_of_table = tf.IndexedSlices(tf.constant([[3.0, 0.0], [0.0, 4.0]]), tf.constant([0, 7]), tf.constant([9, 2]))
    assert measured(rows, [rows_of_table]) == pytest.approx(5.0)


@pytest.mark.parametrize("count", [3, 100_000])
def test_norms_that_are_zero_or_no_number(rows: Rows, count: int) -> None:
    assert measured(rows, [tf.zeros([count])]) == LEAST_NORM
    assert measured(rows, [tf.fill([count], np.inf)]) == np.inf
    assert np.isnan(measured(rows, [tf.fill([count], np.nan)]))
    assert measured(rows, [tf.cast(tf.fill([count], 300), "float16")]) == pytest.approx(300 * count**0.5, rel=1e-3)


def test_the_ring_keeps_the_last_rows(rows: Rows) -> None:
    step = step_of(rows)

    @tf.function
    def steps(count: Any) -> None:
        for number in tf.range(count):
            step(tf.fill([3], tf.cast(number, tf.float32)))

    steps(ROWS_OF_STAMPS + 300)
    assert rows.read()[0] == ROWS_OF_STAMPS + 300
    losses = column(last(rows, ROWS_OF_STAMPS), Column.LOSS)
    assert losses.tolist() == list(range(300, ROWS_OF_STAMPS + 300))


def test_a_step_that_fails_has_no_row(rows: Rows) -> None:
    def step(value: Any) -> Any:
        with Stamps(rows) as stamps:
            stamps.loss(value)
            with tf.control_dependencies([tf.debugging.assert_less(value, 2.0)]):
                result = tf.identity(value)
            stamps.end()
            return result

    run = tf.function(step)
    for number in range(5):
        if number < 2:
            run(tf.constant(float(number)))
        else:
            with pytest.raises(tf.errors.InvalidArgumentError):
                run(tf.constant(float(number)))
    assert rows.read()[0] == 2
    run(tf.constant(1.5))
    assert column(last(rows, 3), Column.LOSS).tolist() == [0.0, 1.0, 1.5]


def test_steps_beside_each_other_do_not_mix() -> None:
    rows = compiled()
    step = tf.function(step_of(rows))
    step(tf.zeros([3]))

    def run(first: int) -> None:
        for number in range(first, first + 100):
            step(tf.fill([3], float(number)))

    threads = [threading.Thread(target=run, args=(first,)) for first in (1, 101, 201)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(timeout=120)
    assert rows.read()[0] == 301
    found = last(rows, 301)
    assert sorted(column(found, Column.LOSS)) == list(range(301))
    is_measured = column(found, Column.GRADIENT_NORM) > 0
    assert is_measured.sum() == 301 // NORM_EVERY + 1
    expected = column(found, Column.LOSS)[is_measured] * 3**0.5
    np.testing.assert_allclose(column(found, Column.GRADIENT_NORM)[is_measured], np.maximum(expected, LEAST_NORM))


def test_a_reader_beside_steps_sees_whole_rows_in_their_order() -> None:
    rows = compiled()
    step, over = tf.function(step_of(rows)), threading.Event()
    gradient = tf.ones([3])
    step(gradient)

    def run() -> None:
        for number in range(1, 400):
            step(number * gradient)
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    seen = 0
    while not over.is_set() or seen < 400:
        written, ring = rows.read()
        assert written >= seen
        found = ring[:written]
        assert column(found, Column.LOSS)[1:].tolist() == list(range(1, written))
        assert (column(found, Column.GRAPH_END) > 0).all()
        seen = written
    thread.join(timeout=120)


def test_they_are_left_out_where_nobody_wants_or_has_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NATIVE.name, "0")
    assert stamp_ops.stamp_ops() is None
    monkeypatch.delenv(NATIVE.name)

    def load(of: library.Library, made: Any) -> Any:
        raise TfdistError("there is no compiler")

    monkeypatch.setattr(library, "load", load)
    stamp_ops._loaded.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert stamp_ops.stamp_ops() is None
        assert stamp_ops.stamp_ops() is None
    stamp_ops._loaded.cache_clear()
    (said,) = caplog.records
    assert "there is no compiler" in said.message


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_by_themselves_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    """No row is torn or lost beside readers, and nothing is read or written outside of one; see the program."""
    compiler = build_target.find_program(os.environ, "CXX", *build_target.COMPILERS)
    assert compiler is not None
    core = [path for path in library.STAMPS.sources("*.cc") if path.name != "ops.cc"]
    # functions in several versions end a program under ThreadSanitizer before it begins
    flags = ["-std=c++17", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", "-DTFDIST_PORTABLE_CODECS"]
    command = [compiler, *flags, f"-fsanitize={kind}", "-fno-sanitize-recover=undefined", *map(str, core)]
    command += [*map(str, CHECKS.glob("*.cc")), "-o", str(tmp_path / "check")]
    subprocess.run(command, check=True, timeout=600)
    done = subprocess.run([tmp_path / "check"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "stamps: ok\n"), done.stderr
