"""The workers of `injections.py`: a training whose passes use the processor for a set time, one of them longer.

A pass multiplies matrices until its thread has used the processor for the given time. Python's lock is free meanwhile,
so a process that takes the processor away makes the pass longer, as in a real training.
"""

import gc
import os
import threading
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.integration.cases.late import CLASSES, behind, network
from tfdist.bench.workers import workloads
from tfdist.cluster import from_environment
from tfdist.monitor.process_clock import recorder

#: seconds of a pass that nobody makes longer
PASSES = {"forward": 0.006, "backward": 0.010, "update": 0.002}
BATCH, WIDTH = 32, 256

_matrix = np.ones((64, 64), np.float32)
_heap: list[Any] = []
_now: dict[str, Any] = {"where": "none", "seconds": 0.0}
_product_seconds = [0.0]  # of a product of a chief's workers
_model: list[keras.Model] = []
_examples: list[Any] = [np.zeros((BATCH, 64), np.float32), np.zeros(BATCH, np.int64)]


def work(seconds: float) -> None:
    """Keep the processor busy for so many seconds of its time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.dot(_matrix, _matrix)


def late(where: str) -> Any:
    """Return a function of a tensor that takes its time, and more where it is told to."""

    def pause() -> np.int64:
        longer = _now["seconds"] if _now["where"] == where else 0.0
        if where == "input":
            if longer:
                _turns.next_batch()
            time.sleep(longer)  # as reading does
        else:
            work(PASSES[where] + longer)
        return np.int64(0)

    return behind(pause)


class Turns:
    """Lets a batch be read once the step before has ended: what is read ahead would hide for how long it is read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._read, self._stepped = 0, 0

    def begin(self) -> None:
        with self._changed:
            self._read, self._stepped = 0, 0

    def step(self) -> None:
        with self._changed:
            self._stepped += 1
            self._changed.notify_all()

    def next_batch(self) -> None:
        with self._changed:
            self._read += 1
            self._changed.wait_for(lambda: self._stepped >= self._read - 1, timeout=10)


_turns = Turns()


class Collects(keras.callbacks.Callback):
    """Has Python collect its garbage after each step, for as long as it is told to, and says that it has ended."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        _turns.step()
        end = time.perf_counter() + (_now["seconds"] if _now["where"] == "gc" else 0.0)
        while time.perf_counter() < end:
            gc.collect(0)


def prepare(strategy: str, processors: list[int], steps: int) -> None:
    """Build the model in a process that has a processor of its own, and train it for some steps."""
    me = int(os.environ.get("TFDIST_WORKER_INDEX") or 0)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {processors[me % len(processors)]})
    keras.utils.set_random_seed(1)
    with workloads.of_tfdist(strategy).scope():
        model = network(WIDTH, late)
    _model.append(model)
    run("none", 0, 0.0, steps)


class Working(keras.layers.Layer):
    """Passes on what it is given, and multiplies matrices in both passes.

    A chief's workers run its graph and no script. So how often it does is in a variable that each of them has for
    itself: it is named and not made in the graph, and means the one on the device that runs it.
    """

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def passed(values: tf.Tensor) -> Any:
            return worked("forward")(values), worked("backward")

        return passed(inputs)


class WorkingSGD(keras.optimizers.SGD):
    """Multiplies matrices before it updates the kernel of the last layer."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        is_last = tuple(variable.shape)[1:] == (CLASSES,)
        super().update_step(worked("update")(gradient) if is_last else gradient, variable, learning_rate)


def worked(where: str) -> Any:
    """Return a function of a tensor that returns it as it is, after so many products of matrices."""

    def through(tensor: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tensor]):
            count = tf.raw_ops.ReadVariableOp(resource=_count(where), dtype=tf.int32)
        ones = tf.fill([64, 64], 1 / 64)
        done = tf.while_loop(
            lambda number, product: number < count, lambda number, product: (number + 1, product @ ones), [0, ones]
        )
        with tf.control_dependencies(done):
            return tf.identity(tensor)

    return through


def _count(where: str) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=f"products_{where}", container="injected")


def _let_work(where: str, worker: int, seconds: float) -> None:
    """Let a pass take longer on one worker, or the update, which is the server's; all others as long as usual."""
    passes = [f"/job:worker/replica:0/task:{index}/device:CPU:0" for index in range(2)]
    server = "/job:ps/replica:0/task:0/device:CPU:0"
    late = server if where == "update" else passes[worker]
    for device in (*passes, server, "/device:CPU:0"):  # the chief tries the model, too
        for part, usual in PASSES.items():
            more = seconds if (part, device) == (where, late) else 0.0
            with tf.device(device):
                count = round((usual + more) / _product_seconds[0])
                tf.raw_ops.AssignVariableOp(resource=_count(part), value=tf.constant(count))


def _measure_products(device: str) -> None:
    """Learn how long a product takes on a worker, as `worked` has them."""
    run = tf.function(lambda: worked("forward")(tf.zeros([])))
    taken = []
    for count in (0, 500, 0, 500, 0, 500):  # the first two trace
        with tf.device(device):
            tf.raw_ops.AssignVariableOp(resource=_count("forward"), value=tf.constant(count))
            began = time.perf_counter()
            run().numpy()
        taken.append(time.perf_counter() - began)
    _product_seconds[0] = min(taken[3], taken[5]) / 500 - min(taken[2], taken[4]) / 500


def prepare_chief(
    strategy: str, processors: list[int], steps: int, config: str | None = None, pids: list[int] | None = None
) -> None:
    """Train a model for some steps that computes on two workers, with a processor each.

    Args:
        strategy: of the chief.
        processors: those of this machine.
        steps: of training.
        config: the TF_CONFIG of the chief; None to start a server and two workers here.
        pids: of both workers, and of the server, where they are started.
    """
    chief = tfdist.strategies.ParameterServerStrategy(
        None if config is None else from_environment({"TF_CONFIG": config}),
        local_workers=2,
        local_servers=1,
        max_staleness=0,
    )
    if pids is None:
        tasks = chief._tasks
        assert tasks is not None
        pids = [tasks.pid("worker", 0), tasks.pid("worker", 1), tasks.pid("ps", 0)]
    bound = {pid: {processor} for pid, processor in zip(pids, processors[:2], strict=False)}
    others = set(processors[2:] or processors)  # of chief and server
    for pid, where in {**bound, pids[-1]: others, os.getpid(): others}.items():
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), where)
    _measure_products("/job:worker/replica:0/task:0/device:CPU:0")
    dense = keras.layers.Dense
    with chief.scope():
        layers = [dense(WIDTH, "relu"), Working(), dense(WIDTH), dense(CLASSES)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=WorkingSGD(0.01), loss=loss)
    _model.append(model)
    run_chief("none", 0, 0.0, steps)


def run_chief(where: str, worker: int, seconds: float, steps: int) -> float:
    """Train as `run` does, on a chief, a worker of which takes longer for a pass, or the chief for its own part."""
    _let_work(where, worker, seconds)
    return run(where if where in ("input", "gc") else "none", 0, seconds, steps)


def run(where: str, worker: int, seconds: float, steps: int) -> float:
    """Train so many steps, in each of which this worker is late where it is told to; return how long a step took."""
    here = worker == int(os.environ.get("TFDIST_WORKER_INDEX") or 0)
    _now.update(where=where if here else "none", seconds=seconds)
    data = tf.data.Dataset.from_tensors(tuple(_examples)).repeat(steps).map(lambda x, y: (late("input")(x), y))
    data = data.apply(tf.data.experimental.assert_cardinality(steps))
    _turns.begin()
    began = time.perf_counter()
    _model[-1].fit(data, epochs=1, verbose=0, callbacks=[Collects()])
    found = recorder()
    assert found is not None
    found.flush()
    return (time.perf_counter() - began) / steps
