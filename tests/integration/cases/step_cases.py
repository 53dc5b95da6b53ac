"""Cases of observers of real trainings: each returns the steps, with their kind and their phases."""

import itertools
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.shares import Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.recording import recorder as recording
from tfdist.monitor.recording import row_ring
from tfdist.monitor.verdict.step_parts import Part, of_workers, timeline
from tfdist.training.execution import Execution, Last
from tfdist.training.global_batches import Input

X = np.random.RandomState(0).normal(size=(20, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
BATCH = 8  # three steps an epoch, the last one with fewer examples


class Recorder(StepObserver):
    """Keeps what it is told, and whether phases follow on each other without gaps."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self._at = 0

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        """Begin a record."""
        self.steps[step] = {"kind": kind, "phases": [], "is_sound": True, "worked": None}
        self._at = now

    def on_phase(self, step: int, phase: Phase, begin: int, end: int) -> None:
        """Add a phase."""
        record = self.steps[step]
        record["phases"].append(phase)
        record["is_sound"] &= begin == self._at <= end and record["worked"] is None
        self._at = end

    def on_end(self, step: int, worked: int, now: int) -> None:
        """Complete a record."""
        record = self.steps[step]
        record["is_sound"] &= record["worked"] is None and self._at == now <= time.monotonic_ns()
        record["worked"] = worked


class Recorded:
    """Records the steps of a block."""

    def __enter__(self) -> Recorder:
        self.recorder = Recorder()
        step_clock().attach(self.recorder)
        return self.recorder

    def __exit__(self, *_: Any) -> None:
        step_clock().detach(self.recorder)


def made(strategy: Any, **options: Any) -> keras.Model:
    """Return a model in the scope."""
    with strategy.scope():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **options})
    return network


def reported(recorder: Recorder) -> dict[str, Any]:
    """Return what was told."""
    return {
        "kinds": [step["kind"] for step in recorder.steps.values()],
        "phases": [step["phases"] for step in recorder.steps.values()],
        "are_sound": all(step["is_sound"] and step["worked"] > 0 for step in recorder.steps.values()),
        "are_in_a_row": all(after == step + 1 for step, after in itertools.pairwise(recorder.steps)),
    }


def fit_with_validation(model: keras.Model) -> None:
    """Two epochs, then a prediction; every function is traced in the first."""
    data = {"validation_data": (X[:BATCH], Y[:BATCH]), "validation_batch_size": BATCH}
    model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **data)
    model.predict(X[:BATCH], batch_size=BATCH, verbose=0)


def evaluated_in_callbacks(model: keras.Model) -> None:
    """The model is evaluated between the steps, and before each."""

    def evaluate(*_: Any, **__: Any) -> None:
        model.evaluate(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=evaluate, on_train_batch_end=evaluate)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[callback])


def steps_per_execution(model: keras.Model) -> None:
    """Two steps of training in each step that is counted; the last has one."""
    model.steps_per_execution = 2
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    model.steps_per_execution = 1


class Wide(keras.Model):
    """Predicts two numbers for an example, one of them with the shape of a scalar."""

    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network = network

    def call(self, x: Any) -> dict[str, Any]:
        """Return them by name."""
        row = self.network(x)
        return {"row": row, "number": row[:, 0]}


def at_once() -> dict[str, Any]:
    """Train, evaluate and predict with one step in a call and with four; return what is not the same to the bit."""
    rows = np.random.RandomState(1).normal(size=(101, 4)).astype(np.float32)  # 13 batches, the last with 5 examples

    calls: list[list[int]] = []

    def outcome(at_once: int) -> dict[str, bytes]:
        keras.utils.set_random_seed(2)
        strategy, seen = mirrored_strategy(), []
        with strategy.scope():
            layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
            network = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
            network.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=at_once)
        told = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs))))
        target = {"validation_data": (rows[:50], rows[:50, :1]), "callbacks": [told], "verbose": 0}
        history = network.fit(rows, rows[:, :1], batch_size=BATCH, epochs=2, **target).history
        last = dict(seen)  # of the second epoch
        found = {f"logs after step {batch}": repr(last[batch]).encode() for batch in (3, 7, 11)}
        found["history"] = repr(history).encode()
        found["evaluation"] = repr(network.evaluate(rows, rows[:, :1], batch_size=BATCH, verbose=0)).encode()
        found["prediction"] = network.predict(rows, batch_size=BATCH, verbose=0).tobytes()
        steps = Recorder()
        step_clock().attach(steps)
        with strategy.scope():
            wide = Wide(network)
            wide.compile(steps_per_execution=at_once)
        of_unknown = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH).filter(lambda x: True)
        try:
            for name, value in wide.predict(of_unknown, verbose=0).items():
                found[f"prediction {name}"] = value.tobytes()
        finally:
            step_clock().detach(steps)
        calls.append([step["phases"].count(Phase.EXECUTE) for step in steps.steps.values()])
        for variable in [*network.variables, *network.optimizer.variables]:
            found[variable.path.split("/", 1)[-1]] = np.asarray(variable.value).tobytes()
        return found

    one, four = outcome(1), outcome(4)
    names = [name for name, before, after in zip(one, one.values(), four.values(), strict=True) if before != after]
    return {"compared": len(one), "differ": names, "calls": calls[1]}


def signs_of_life() -> dict[str, Any]:
    """Run two steps in a graph whose second batch comes only when the first one's end was told from outside."""
    told, activities = threading.Event(), []

    class Listener(StepObserver):
        def on_activity(self, activity: Any, now: int) -> None:
            if threading.current_thread().name == "tfdist-heartbeat":
                activities.append(activity.name)

    def rows() -> Any:
        yield X[:BATCH], Y[:BATCH]
        while not told.wait(1.0):  # a test that fails ends by the deadline of the call
            pass
        yield X[:BATCH], Y[:BATCH]

    signature = (tf.TensorSpec((BATCH, 4)), tf.TensorSpec((BATCH, 1)))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    given = Input(data, batches=2, share=Shares.equal(1).all, workers=Workers())
    counts = [tf.TensorSpec([], tf.int32), *given.layout.signature]
    step = tf.function(lambda examples, *batch: {"examples": examples}, input_signature=counts).get_concrete_function()
    execution = Execution(step, Last(), renew=told.set, on_trace=lambda: None)
    listener = Listener()
    step_clock().attach(listener)
    try:
        with step_clock().step(Kind.TRAIN, Phase.EXECUTE):
            logs, examples = execution.run(iter(given), 5)
    finally:
        step_clock().detach(listener)
    return {"examples": examples, "last": int(logs["examples"]), "activities": activities}


def single_calls(model: keras.Model) -> None:
    """A loop of Keras' calls; the first call of each kind traces."""
    for _ in range(3):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
    for _ in range(2):
        model.test_on_batch(X[:BATCH], Y[:BATCH])


def a_loop_of_ones_own(model: keras.Model) -> None:
    """A function of the user's is no step that anybody knows of, unless the script says so."""
    strategy, weight = model.distribute_strategy, model.weights[1].value

    @tf.function
    def double() -> Any:
        return strategy.run(lambda: 2.0 * weight)

    for _ in range(2):
        double()
    with step_clock().step(Kind.TRAIN, Phase.EXECUTE):
        double()


def of_replicas() -> dict[str, Any]:
    """Do all this with one model under the strategy of this process; also return how many updates it has counted."""
    model, seen, updates = made(mirrored_strategy()), {}, 0
    for case in (
        fit_with_validation,
        evaluated_in_callbacks,
        steps_per_execution,
        single_calls,
        a_loop_of_ones_own,
    ):
        with Recorded() as recorder:
            case(model)
        before, updates = updates, int(model.optimizer.iterations.numpy())
        seen[case.__name__] = {**reported(recorder), "updates": updates - before}
    return seen


def eager() -> dict[str, Any]:
    """Train a model whose step runs as Python; a step ends where its input raises, and the next is counted as any."""
    model = made(mirrored_strategy(), run_eagerly=True)  # before TensorFlow starts
    x = np.concatenate([X[:BATCH], np.full_like(X[:BATCH], np.nan)])
    data = tf.data.Dataset.from_tensor_slices((x, Y[: 2 * BATCH])).batch(BATCH)
    data = data.map(lambda x, y: (tf.debugging.check_numerics(x, "no number"), y))
    with Recorded() as recorder:
        try:
            model.fit(data, verbose=0)
        except tf.errors.InvalidArgumentError:
            model.train_on_batch(X[:BATCH], Y[:BATCH])
    return {**reported(recorder), "updates": int(model.optimizer.iterations.numpy())}


def mirrored_strategy() -> Any:
    """Return the strategy of the process that tests mirrored training."""
    import mirrored_cases

    return mirrored_cases.STRATEGY


def of_a_chief(max_staleness: int | None) -> Any:
    """Train on the workers of this process, once all is traced."""
    import parameter_server_cases

    model = made(parameter_server_cases.strategy(max_staleness=max_staleness))
    data = tf.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(BATCH)
    model.fit(data, verbose=0)
    with Recorded() as recorder:
        model.fit(data, epochs=2, verbose=0)
    return {**reported(recorder), "updates": int(model.optimizer.iterations.numpy())}


class Slow(keras.layers.Layer):
    """Passes on what it is given, and takes its time in both passes, wherever it runs."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self._seconds = forward, backward

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""

        @tf.custom_gradient
        def passed(values: Any) -> Any:
            return _late(values, self._seconds[0]), lambda gradient: _late(gradient, self._seconds[1])

        return passed(inputs)


def _late(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    with tf.control_dependencies([tensor]):
        began = tf.timestamp()
    ended = tf.while_loop(lambda now: now < began + seconds, lambda now: tf.timestamp(), [began])
    with tf.control_dependencies([ended] if isinstance(ended, tf.Tensor) else ended):
        return tf.identity(tensor)


def passes_of_a_chief(forward: float, backward: float, max_staleness: int | None) -> dict[str, Any]:
    """Train on the workers of this process, recorded and not, and return what the workers told of it."""
    import parameter_server_cases

    losses, weights = [], []
    for is_recorded in (True, False):
        keras.utils.set_random_seed(0)
        with parameter_server_cases.strategy(max_staleness=max_staleness).scope():
            slow = Slow(forward, backward) if is_recorded else Slow(0.0, 0.0)
            layers = [keras.Input((4,)), keras.layers.Dense(3), slow, keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(optimizer="sgd", loss="mse")
        with tempfile.TemporaryDirectory() as folder:
            recorder = recording.Recorder(Path(folder, "worker-0"))
            if is_recorded:
                step_clock().attach(recorder)
            try:
                # batches of one kind: another one's function would be traced in the middle
                losses.append(
                    model.fit(X[:12], Y[:12], batch_size=6, epochs=3, shuffle=False, verbose=0).history["loss"]
                )
                recorder.flush()
            finally:
                step_clock().detach(recorder)
            if is_recorded:
                rows = row_ring.read(recorder.path)
            recorder.close()
        weights.append([weight.numpy() for weight in model.weights])
    of_chief, of_each = timeline({0: rows}), timeline(of_workers({0: rows}))
    parts = [Part.FORWARD, Part.BACKWARD, Part.COMMUNICATION]
    return {
        "losses": losses,
        "difference": max(float(np.abs(one - other).max()) for one, other in zip(*weights, strict=True)),
        "workers": len(of_each.ranks),
        "steps": len(of_each.steps),
        "is_divided": of_each.is_divided,
        "parts": np.median(of_each.parts[:, :, parts], axis=(0, 1)).tolist(),
        "missing": float(np.abs(of_each.parts.sum(axis=2) - of_each.step).max()),
        "loss": of_chief.loss[:, 0].tolist(),
    }
