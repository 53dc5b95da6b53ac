"""Stamps of steps on a GPU, without one: events by a driver that only pretends, and graphs that are read."""

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from tests.refusals import refused
from tfdist.compat.tensorflow import traced_uses
from tfdist.errors import MissingDependencyError
from tfdist.gradients.reduction import norms
from tfdist.monitor.recording.device_rows import DeviceRows
from tfdist.monitor.recording.device_time import DEVICE_BEGIN, DEVICE_END
from tfdist.monitor.recording.graph_stamps import Stamps
from tfdist.monitor.recording.rows import STAMPS, Column
from tfdist.monitor.recording.stamp_rows import OperationRows
from tfdist.native import build_target, library
from tfdist.native.device_stamp_ops import DeviceStampOps
from tfdist.native.stamp_ops import StampOps, stamp_ops
from tfdist.training import step_timestamps

pytestmark = pytest.mark.quick

CHECKS = Path(__file__).parents[1] / "native" / "device_stamps"
FIRST = STAMPS[0]


def stamps() -> StampOps:
    ops = stamp_ops()
    assert ops is not None
    return ops


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, str(CHECKS / "driver.c"), "-o", str(path)], check=True, timeout=300)
    return path


@pytest.mark.thorough
def test_events_by_themselves_under_a_sanitizer(driver: Path, tmp_path: Path) -> None:
    """Times come late, and are right; see the program, which `make sanitize` runs under the others too."""
    compiler = build_target.find_program(os.environ, "CXX", *build_target.COMPILERS)
    assert compiler is not None
    flags = ["-std=c++17", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread"]
    command = [compiler, *flags, str(CHECKS / "main.cc"), "-ldl"]
    subprocess.run([*command, "-o", str(tmp_path / "check")], check=True, timeout=600)
    done = subprocess.run([tmp_path / "check", driver], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "device stamps: ok\n"), done.stderr


@pytest.fixture(scope="module")
def ops(driver: Path) -> DeviceStampOps:
    path = library.build(library.DEVICE_STAMPS, build_target.observe(), os.environ).path
    with refused(MissingDependencyError, name="/none/libcuda.so.1"):
        DeviceStampOps(path, stamps(), "/none/libcuda.so.1")
    return DeviceStampOps(path, stamps(), str(driver))


def test_its_op_is_for_gpus_and_takes_the_row_from_the_host(ops: DeviceStampOps) -> None:
    for name, host in (("TfdistDeviceStamp", ["row"]), ("TfdistStampBegin", ["row"]), ("TfdistStampEnd", ["row"])):
        kernels = {one.device_type: list(one.host_memory_arg) for one in get_registered_kernels_for_op(name).kernel}
        assert kernels["GPU"] == host, name
    assert [one.device_type for one in get_registered_kernels_for_op("TfdistDeviceStamp").kernel] == ["GPU"]


def test_a_replica_on_a_gpu_is_stamped_by_its_device_or_not_at_all(
    ops: DeviceStampOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_timestamps, "_is_on_gpu", lambda: True)
    monkeypatch.setattr(step_timestamps, "_is_asked", True)
    monkeypatch.setattr(step_timestamps, "_rows", None)

    def can_stamp() -> bool:
        with tf.Graph().as_default():
            return step_timestamps.can_stamp()

    for found in (ops, None):
        monkeypatch.setattr(step_timestamps, "device_stamp_ops", lambda found=found: found)
        assert can_stamp() == (found is not None)
        assert isinstance(step_timestamps.new_rows(), DeviceRows) == (found is not None)
    monkeypatch.setattr(step_timestamps, "device_stamp_ops", lambda: ops)
    monkeypatch.setattr(step_timestamps, "_rows", OperationRows(traced_uses.independent))
    assert not can_stamp(), "rows of a processor's steps are there already"
    with tf.Graph().as_default(), step_timestamps.passes_told(1) as (_, row):
        assert row is None, "a worker without a script stamps no GPU"


def step_of(rows: DeviceRows) -> Callable[..., Any]:
    """A step with a loss, two gradients that are reduced one by one, and something that has effects."""
    variable = tf.Variable(0.0)

    def step(value: Any) -> Any:
        with Stamps(rows) as made:
            (value,) = made.from_begin((value,))
            made.loss(tf.stack([value, value]))
            gradients = [value * 2, value * 3]
            made.mark(Column.GRADIENTS, gradients)
            found = [made.reduction([one], functools.partial(list, [one]))[0] for one in gradients]
            made.mark(Column.REDUCED, found)
            made.gradient_norm(norms.all_squares, found)
            variable.assign_add(found[0])
            made.end()
            return value

    return step


def test_nothing_goes_from_a_gpu_to_the_host(ops: DeviceStampOps) -> None:
    """Such a tensor or control edge waits for the GPU, and the host could hand nothing out ahead."""
    step = step_of(DeviceRows(ops, traced_uses.independent))

    def on_gpu(value: Any) -> Any:
        with tf.device("/device:GPU:0"):
            return step(value)

    graph = tf.function(on_gpu, autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    made = [one for one in graph.get_operations() if one.type.startswith("Tfdist")]
    assert {one.device for one in made} == {"/device:GPU:0"}
    columns = [one.get_attr("column") + FIRST for one in made if one.type == "TfdistDeviceStamp"]
    pairs = [Column.ARRIVALS, Column.COMPLETIONS, Column.ARRIVALS + 1, Column.COMPLETIONS + 1]
    assert columns == [DEVICE_BEGIN, Column.FORWARD, Column.GRADIENTS, *pairs, Column.REDUCED, DEVICE_END]
    (end,) = (one for one in made if one.type == "TfdistStampEnd")
    assert end.get_attr("others") == len(columns)
    last = made[-2]
    assert end.control_inputs == [last]
    assert "AssignAddVariableOp" in {one.type for one in last.control_inputs}
    first = made[1]
    waiting = [one.type for one in graph.get_operations() if first in one.control_inputs]
    assert waiting == ["Identity", "NoOp"], "the step's data wait for its begin, and the function's end for all effects"


class Queue:
    """A device that has a queue of stamps, and comes to them when it is told to."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int, int, int, list[float]]] = []
        self._set, self._leave = stamps()._library.tfdist_stamps_set, stamps()._library.tfdist_stamps_leave
        self._set.restype = self._leave.restype = None
        self._set.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_size_t, ctypes.c_double]
        self._leave.argtypes = [ctypes.c_int64, ctypes.c_int64]

    def op(self, row: Any, values: Sequence[Any], rows: int, column: int, place: int) -> Any:
        """Stand in for the op on a GPU, where there is none."""

        def give(number: np.int64, *numbers: np.float64) -> np.int64:
            self.given.append((rows, int(number), column, place, list(map(float, numbers))))
            return np.int64(0)

        return tf.numpy_function(give, [row, *values], tf.int64)

    def come_to_all(self, time: float) -> None:
        for rows, number, column, place, values in self.given:
            self._set(rows, number, column, time)
            for value in values:
                self._set(rows, number, place, value)
            self._leave(rows, number)
        self.given.clear()


def test_rows_are_whole_once_the_device_has_done_its_steps() -> None:
    queue = Queue()
    rows = DeviceRows(SimpleNamespace(stamps=stamps(), op=queue.op), traced_uses.independent)
    step = tf.function(step_of(rows), autograph=False)
    for number in range(100):  # more than are open at once on a processor
        step(tf.constant(float(number)))
    assert rows.read()[0] == 0
    queue.come_to_all(7.0)
    count, found = rows.read()
    assert count == 100
    assert found.shape[1] == len(STAMPS)
    assert found[:100, Column.LOSS - FIRST].tolist() == [2.0 * number for number in range(100)]
    of_device = [Column.GRAPH_BEGIN, Column.FORWARD, Column.GRADIENTS, Column.REDUCED, Column.GRAPH_END]
    assert (found[:100, [column - FIRST for column in (*of_device, Column.ARRIVALS)]] == 7.0).all()
    assert (found[:100, Column.REDUCTIONS - FIRST] == 2).all()
    assert (found[:100, Column.GRADIENT_NORM - FIRST] == 0).all()
    _, both = rows.read_both()
    begin, end = both[:100, Column.GRAPH_BEGIN - FIRST], both[:100, Column.GRAPH_END - FIRST]
    assert (begin > 1e9).all(), "the host's are of the wall clock"
    assert (end >= begin).all()
    assert (both[:100, [DEVICE_BEGIN - FIRST, DEVICE_END - FIRST]] == 7.0).all()
