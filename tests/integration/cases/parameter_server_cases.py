"""Cases of the parameter-server strategy, which run in a chief with three workers and two servers of its own."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import partitioned_models
import psutil
import reducer_cases
import refusal_fields
import tensorflow as tf

from tests.integration.cases.optimizers_of_ones_own import Unseeded
from tests.integration.cases.resuming import far, far_when_served
from tfdist import errors
from tfdist.federated import App, FedAvg
from tfdist.optimizers import LARS, DistributedOptimizer
from tfdist.strategies import ParameterServerStrategy
from tfdist.testing.digits import load_digits
from tfdist.training.parameter_servers import transport

WORKERS, SERVERS = 3, 2
RATE = 2.0**-10  # sums of it are exact in float32

_made: list[ParameterServerStrategy] = []


def strategy(**options: Any) -> ParameterServerStrategy:
    """Return a new strategy over the tasks of this process."""
    given = {"local_workers": WORKERS, "local_servers": SERVERS, "timeout_seconds": 60.0, **options}
    for old in _made:
        old._scheduler.close()
    _made.append(ParameterServerStrategy(**given))
    return _made[-1]


def ready() -> None:
    """Start the tasks of this process."""
    strategy()


def all_present(made: ParameterServerStrategy) -> bool:
    """Return whether all workers can be given something; the chief reaches for them between two outcomes."""
    made._scheduler.next_outcome([], wait=False)
    return made._scheduler.present == WORKERS


def pid(job: str, index: int) -> int:
    """Return the process of a task."""
    tasks = _made[-1]._tasks
    assert tasks is not None
    return tasks.pid(job, index)


class Examples(keras.metrics.Metric):
    """Counts examples."""

    def __init__(self) -> None:
        super().__init__(name="examples")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del y_pred, sample_weight
        self.total.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self) -> Any:
        return self.total


class Constant(keras.layers.Layer):
    """One weight, whatever the input is: under the loss of `counting` its gradient is 1."""

    def build(self, shape: Any) -> None:
        del shape
        self.weight = self.add_weight(name="weight", shape=(1,), initializer="zeros")

    def call(self, x: Any) -> Any:
        return tf.zeros_like(x[:, :1]) + self.weight


def counting(
    made: ParameterServerStrategy, rate: float = RATE, around: Callable[[Any], Any] = lambda inner: inner
) -> keras.Model:
    """Return a model whose weight is -RATE times the number of updates that were applied, exactly."""
    with made.scope():
        model = keras.Sequential([keras.Input((2,)), Constant()])
        model.compile(around(keras.optimizers.SGD(rate)), "mae", metrics=[Examples()])
    return model


def data(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, and targets far below what the model says."""
    return np.zeros((examples, 2), np.float32), np.full((examples, 1), -1000.0, np.float32)


class At(keras.callbacks.Callback):
    """Does something after a batch of an epoch, once."""

    def __init__(self, epoch: int, batch: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._when, self._action, self._epoch = (epoch, batch), action, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._when:
            self._action()

    on_test_batch_end = on_train_batch_end


def counts(made: ParameterServerStrategy, model: keras.Model, history: Any) -> dict[str, Any]:
    """Return every count of updates and examples that there is."""
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "weight": float(model.get_weights()[0][0]) / -RATE,
        "examples": history.history["examples"],
        "staleness": made.staleness.count,
        "largest": made.staleness.largest,
        "staleness_max": history.history.get("staleness_max"),
        "lost": made.lost_workers,
    }


def count_exactly(options: dict[str, Any], epochs: int = 3) -> dict[str, Any]:
    """Train 20 batches of 8 and one of 5 in each epoch."""
    made = strategy(**options)
    model = counting(made)
    history = model.fit(*data(165), batch_size=8, epochs=epochs, verbose=0)
    return counts(made, model, history)


def count_while_the_scale_grows(optimizer: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train as in `count_exactly`, with a loss scale that is doubled after every two updates."""

    def scaled(inner: Any) -> Any:
        if optimizer == "keras":
            return keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2)
        k = 3 if optimizer == "accumulated" else 1
        return DistributedOptimizer(inner, loss_scale="dynamic", growth_steps=2, accumulate_steps=k)

    made = strategy(**options)
    model = counting(made, around=scaled)
    history = model.fit(*data(165), batch_size=8, epochs=3, verbose=0).history
    return {
        "updates": int(model.optimizer.iterations.numpy()),
        "weight": weight(model),
        "scale": history["loss_scale"][-1],
        "skipped": history["skipped_steps"][-1],
        "largest": made.staleness.largest,
    }


def reducers() -> list[str]:
    """Run the battery of reducers with three parts of a batch."""
    return reducer_cases.servers(strategy(), WORKERS)


def what_travels(wire_dtype: str) -> dict[str, Any]:
    """Train two batches, and note in which dtype a worker leaves gradients on their servers."""
    dtypes: list[str] = []
    plain = transport.left_on_server

    def noting(value: Any, device: str) -> list[tf.Tensor]:
        left = plain(value, device)
        dtypes.extend(tensor.dtype.name for tensor in left)
        return left

    model = counting(strategy(), around=lambda inner: DistributedOptimizer(inner, wire_dtype=wire_dtype))
    transport.left_on_server = noting
    try:
        model.fit(*data(16), batch_size=8, verbose=0)
    finally:
        transport.left_on_server = plain
    return {"dtypes": dtypes, "weight": weight(model)}


def count_with_trouble(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train 3 epochs of 20 batches while worker 0 is killed or stopped in the second."""
    made = strategy(**options)
    model = counting(made)
    process = pid("worker", 0)
    number = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[what]
    try:
        history = model.fit(
            *data(160), batch_size=8, epochs=3, verbose=0, callbacks=[At(1, 5, lambda: os.kill(process, number))]
        )
        told = counts(made, model, history)
    finally:
        if what == "stopped":
            os.kill(process, signal.SIGCONT)
    wait(lambda: all_present(made))
    again = model.fit(*data(160), batch_size=8, epochs=1, verbose=0)
    return told | {"again": again.history["examples"], "weight_again": weight(model)}


def count_without(workers: int) -> dict[str, Any]:
    """Train 3 epochs of 20 batches while some workers are killed in the second, for good."""
    made = strategy()
    model = counting(made)
    tasks = made._tasks
    assert tasks is not None
    tasks.revive = lambda job, index: None  # type: ignore[method-assign]

    def kill() -> None:
        for index in range(workers):
            os.kill(pid("worker", index), signal.SIGKILL)

    history = model.fit(*data(160), batch_size=8, epochs=3, verbose=0, callbacks=[At(1, 5, kill)])
    return counts(made, model, history) | {"present": made._scheduler.present}


def evaluate_with_a_kill() -> dict[str, Any]:
    """Evaluate 50 batches while worker 1 is killed, and predict afterwards."""
    made = strategy()
    model = counting(made)
    x, y = np.zeros((203, 2), np.float32), np.arange(203, dtype=np.float32)[:, None]
    callback = At(0, 20, lambda: os.kill(pid("worker", 1), signal.SIGKILL))
    logs = model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[callback], return_dict=True)
    rows = model.predict(np.zeros((11, 2), np.float32), verbose=0)
    wait(lambda: all_present(made))
    return {"examples": float(logs["examples"]), "loss": float(logs["loss"]), "rows": rows.shape}


def predictions_that_compare_rows() -> float:
    """Return how far predictions of a layer that subtracts the mean of a batch are from those of one device."""
    with strategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, lambda h: h - keras.ops.mean(h, axis=0))])
    x = np.arange(24, dtype=np.float32).reshape(-1, 2)
    found = model.predict(x, batch_size=12, verbose=0)
    return float(np.abs(found - (x - x.mean(axis=0)) @ model.get_weights()[0]).max() / np.abs(found).max())


def noise_of_an_optimizer() -> float:
    """Return how far weights are from one device's if an optimizer draws from Keras' generator without a seed."""
    found = []
    for scope in (strategy().scope(), contextlib.nullcontext()):
        keras.utils.set_random_seed(5)
        with scope:
            (model := keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])).compile(Unseeded(0.1), "mse")
        model.fit(np.ones((24, 2), "float32"), np.ones((24, 3)), batch_size=12, verbose=0)
        found.append(model.get_weights()[0])
    return float(np.abs(found[0] - found[1]).max())


def corrected_rates() -> dict[str, float]:
    """Return the weight, and what it must be from the staleness of each gradient."""
    made = strategy(staleness_correction=True)
    model = counting(made, rate=1.0)
    model.fit(*data(400), batch_size=8, epochs=1, verbose=0)
    expected = sum(times / max(1, staleness) for staleness, times in made.staleness.counts.items())
    return {"weight": -float(model.get_weights()[0][0]), "expected": expected, "mean": made.staleness.mean}


def partitioned(optimizer: str, dense: bool, saves: bool) -> dict[str, Any]:
    """Train an embedding and a layer in parts, and on one device, and compare weights; save and load, if asked to."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    made = strategy(max_staleness=0, variable_partitioner=partitioner)
    x = np.random.default_rng(4).integers(0, 13, size=(45, 3))
    y = np.random.default_rng(5).normal(size=(45, 2)).astype(np.float32)

    def build() -> keras.Model:
        keras.utils.set_random_seed(2)
        head = [keras.layers.Dense(5, activation="relu")] if dense else []
        table = (partitioned_models.WithPositions if optimizer == "positions" else keras.layers.Embedding)(13, 4)
        model = keras.Sequential([keras.Input((3,)), table, keras.layers.Flatten(), *head, keras.layers.Dense(2)])
        model.compile(partitioned_models.OPTIMIZERS[optimizer](), "mse")
        return model

    with made.scope():
        model = build()
    alone = build()
    alone.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    loaded = []
    if saves:
        model.save(path := os.path.join(os.environ["TMPDIR"], f"ü {optimizer}.keras"))
        loaded = [keras.models.load_model(path)]
        with made.scope():
            loaded.append(keras.models.load_model(path))
    for one in loaded:
        one.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    pieces = made.placement()
    return {
        "difference": _difference(model, alone, after=alone.fit(x, y, batch_size=8, shuffle=False, verbose=0)),
        "logs": sorted(history),
        "loaded": [_difference(model, one) for one in loaded],
        "servers": sorted({piece.server for piece in pieces if piece.parts > 1}),
        "in parts": len([piece for piece in pieces if piece.parts == 2]),
        "table": made.placement_table(),
        "exported": far_when_served(model, os.path.join(os.environ["TMPDIR"], optimizer), x[:3]) if saves else 0.0,
    }


def _difference(one: keras.Model, other: keras.Model, after: Any = None) -> float:
    del after
    return far(one.get_weights(), other.get_weights())


def rows_travel_alone() -> dict[str, Any]:
    """Look up and train rows of a table that would take seconds to move, many times."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    made = strategy(variable_partitioner=partitioner)
    with made.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(2_000_000, 16), keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(4).integers(0, 2_000_000, size=(800, 1))
    model.fit(x, np.ones((800, 16), np.float32), batch_size=8, epochs=1, verbose=0)
    return {"iterations": int(model.optimizer.iterations.numpy()), "pieces": [p.shape for p in made.placement()]}


def largest_first() -> dict[str, Any]:
    """Return the bytes on each server for a model whose largest layer comes last."""
    made = strategy()
    with made.scope():
        model = keras.Sequential(
            [keras.Input((8,)), *[keras.layers.Dense(8) for _ in range(6)], keras.layers.Dense(60)]
        )
        model.compile("sgd", "mse")
    model.fit(np.ones((6, 8)), np.ones((6, 60)), verbose=0)
    loads = [sum(piece.bytes for piece in made.placement() if piece.server == server) for server in range(SERVERS)]
    real: list[int] = [0] * SERVERS
    for weight in model.weights:
        real[int(weight.value.device.split("task:")[1].split("/")[0])] += weight.numpy().nbytes
    return {"loads": loads, "real": real}


def steps_beyond_a_pass() -> dict[str, Any]:
    """Train on 3 batches that repeat, with more steps than a pass has, several at a time."""
    made = strategy()
    with made.scope():
        model = counting(made)
        model.compile(keras.optimizers.SGD(RATE), "mae", metrics=[Examples()], steps_per_execution=3)
    dataset = tf.data.Dataset.from_tensor_slices(data(24)).batch(8).repeat()
    history = model.fit(dataset, steps_per_epoch=12, epochs=2, verbose=0)
    generated = model.fit((part for part in [data(8)] * 5), epochs=1, verbose=0)
    return counts(made, model, history) | {"generated": generated.history["examples"]}


def batch_logs() -> list[list[float]]:
    """Return losses and counts that callbacks are told after each batch."""
    seen: list[list[float]] = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append([float(logs["loss"]), float(logs["examples"])])

    made = strategy()
    counting(made).fit(*data(80), batch_size=8, epochs=1, verbose=0, callbacks=[Keep()])
    return seen


def evaluate_in_the_middle() -> dict[str, Any]:
    """Evaluate and predict in a callback between batches, and at the last batch of each epoch, while others compute."""
    made = strategy()
    model = counting(made)
    seen: list[float] = []

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch in (3, 9):
                told = self.model.evaluate(*data(50), batch_size=8, verbose=0, return_dict=True)
                seen.extend([float(told["examples"]), float(len(self.model.predict(data(7)[0], verbose=0)))])

    history = model.fit(*data(80), batch_size=8, epochs=2, verbose=0, callbacks=[Evaluate()])
    return {"seen": seen, "iterations": int(model.optimizer.iterations.numpy()), "staleness": list(history.history)}


def interrupted() -> dict[str, Any]:
    """Interrupt a fit between batches, and train again."""
    made = strategy()
    model = counting(made)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        model.fit(*data(160), batch_size=8, epochs=1, verbose=0, callbacks=[At(0, 6, interrupt)])
    before = int(model.optimizer.iterations.numpy())
    history = model.fit(*data(80), batch_size=8, epochs=1, verbose=0)
    return {
        "again": int(model.optimizer.iterations.numpy()) - before,
        "examples": history.history["examples"],
        "exact": weight(model) == int(model.optimizer.iterations.numpy()),
    }


def losses_over_seeds() -> list[list[float]]:
    """Return for 2 seeds the loss on all digits after 4 epochs, on one device and with stale gradients."""
    digits = load_digits()
    x, y = digits.train_images.reshape(-1, 64), digits.train_labels
    made = strategy()

    def build(seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(32, activation="relu")])
        model.add(keras.layers.Dense(10))
        model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    losses = []
    for seed in range(2):
        with made.scope():
            stale = build(seed)
        alone = build(seed)
        for model in (stale, alone):
            model.fit(x, y, batch_size=64, epochs=4, verbose=0)
        losses.append([float(model.evaluate(x, y, batch_size=512, verbose=0)) for model in (alone, stale)])
    return losses


def wrong_steps() -> dict[str, Any]:
    """Return what a step that is wrong in the user's code ends in, and whether training goes on afterwards."""
    made = strategy()
    with made.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(4, 2), keras.layers.Flatten()])
        model.compile("sgd", "mse")
    told = {}
    try:
        model.fit(np.full((64, 1), 9), np.ones((64, 2)), batch_size=4, verbose=0)
    except Exception as error:  # noqa: BLE001 - it is to be seen
        told["error"] = f"{type(error).__name__}: {error}"
    model.fit(np.full((64, 1), 3), np.ones((64, 2)), batch_size=4, verbose=0)
    return told | {"iterations": int(model.optimizer.iterations.numpy()), "lost": made.lost_workers}


def refusals() -> dict[str, list[Any]]:
    """Return the reports of the errors for wrong arguments."""
    from tfdist.cluster import Cluster, TaskId

    reports = {}

    def refused(name: str, **options: Any) -> None:
        reports[name] = refusal_fields.met(lambda: strategy(**options), errors.TfdistError, TypeError)

    strategy()
    refused("staleness", max_staleness=-1)
    refused("bool", max_staleness=True)
    refused("backup", backup_workers=1)
    refused("all backup", max_staleness=0, backup_workers=3)
    refused("partitioner", variable_partitioner=2)
    refused("other size", local_workers=2)
    refused("timeout", worker_timeout_seconds=0)
    several = Cluster(num_workers=2, worker_index=0, addresses=("127.0.0.1:1", "127.0.0.1:2"), source="tfdist run")
    refused("no servers", cluster=several)
    task = TaskId(type="worker", index=0)
    worker = Cluster(num_workers=1, task=task, addresses=("127.0.0.1:1",), parameter_servers=("127.0.0.1:3",))
    refused("a worker", cluster=worker)
    made = strategy(variable_partitioner=lambda shape, dtype: [1, 2])
    with made.scope():
        reports["second axis"] = refusal_fields.met(lambda: keras.layers.Dense(3).build((2, 4)), errors.TfdistError)
    made = strategy(variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2))
    wrapped = {"norms of parts, wrapped": lambda: DistributedOptimizer(LARS())}
    for name, optimizer in {"norms of parts": keras.optimizers.Lamb, **wrapped}.items():
        with made.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="cut")])
            model.compile(optimizer(), "mse")
        fit = functools.partial(model.fit, np.ones((4, 2)), np.ones((4, 3)), verbose=0)
        reports[name] = refusal_fields.met(fit, errors.TfdistError)
    client = App(lambda: model, {"berlin": (np.ones((4, 2)), np.ones((4, 3)))}, FedAvg())
    reports["federated client"] = refusal_fields.met(client.trainer, errors.TfdistError)
    return reports


def a_server_goes() -> dict[str, Any]:
    """Train while both parameter servers are killed, and return the error."""
    made = strategy()
    model = counting(made)

    def kill() -> None:
        for server in map(psutil.Process, (pid("ps", 0), pid("ps", 1))):
            server.kill()  # and the next one when this one has ended
            wait(lambda ended=server: not ended.is_running() or ended.status() == psutil.STATUS_ZOMBIE)

    try:
        model.fit(*data(4000), batch_size=8, epochs=3, verbose=0, callbacks=[At(0, 5, kill)])
    except errors.ServerLostError as error:
        return {"error": str(error)}
    return {"error": "none"}


def weight(model: keras.Model) -> float:
    return float(model.get_weights()[0][0]) / -RATE


def wait(done: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not done() and time.monotonic() < deadline:
        pause.wait(0.05)
    assert done(), "not in time"
