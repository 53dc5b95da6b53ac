"""Cases of workers that meet seldom: each runs in every worker at once and returns JSON values.

The reference is a simulation on one device: a plain Keras model for each worker, which trains on the worker's rows.
Worker 0 alone simulates, and returns the outcome as ``simulated``. So Keras gives its later layers other numbers.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies
from tfdist import errors
from tfdist.callbacks import BackupAndRestore
from tfdist.cluster.shares import Shares
from tfdist.collectives.traced import TracedCollective
from tfdist.compat import planted
from tfdist.compression import ErrorFeedback, TopK
from tfdist.gradients.outer import meeting_schedules
from tfdist.training import local_steps

RANK = int(os.environ["TFDIST_WORKER_INDEX"])
WORKERS = len(os.environ["TFDIST_WORKERS"].split(","))
BATCH = 12
X = np.random.RandomState(0).normal(size=(82, 4)).astype(np.float32)
Y = np.sin(X.sum(axis=1, keepdims=True)).astype(np.float32)
_STRATEGIES: dict[str, Any] = {}
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.02),
}


def sgd(rate: float, momentum: float = 0.0, *, nesterov: bool = False) -> Callable[[], keras.optimizers.Optimizer]:
    return lambda: keras.optimizers.SGD(rate, momentum=momentum, nesterov=nesterov)


def plain(**options: Any) -> tfdist.strategies.DiLoCo:
    """Return outer steps that take the mean."""
    return tfdist.strategies.DiLoCo(outer=sgd(1.0), **options)


#: schedules that no text describes
VALUES: dict[str, tfdist.strategies.DiLoCo] = {
    "plain": plain(every=4),
    "top": plain(every=4, wire=ErrorFeedback(codec=TopK(density=1.0))),
    "int4": tfdist.strategies.DiLoCo(every=4, fragments=2, delay=1, wire="int4"),
}


def strategy(synchronization: str | None) -> Any:
    """Return the strategy of this synchronization; one for each in a process."""
    key = str(synchronization)
    if key not in _STRATEGIES:
        os.environ["TFDIST_SYNCHRONIZATION"] = synchronization or ""
        name, _, collectives = key.partition(" over ")
        if name in VALUES:
            _STRATEGIES[key] = tfdist.strategies.MultiWorkerMirroredStrategy(
                synchronization=VALUES[name], collectives=collectives or "auto"
            )
        else:
            _STRATEGIES[key] = tfdist.strategies.from_environment()
    return _STRATEGIES[key]


strategy(None)  # before TensorFlow's first operation


def network(optimizer: str, *, normalizes: bool = False, dtype: str = "float32", **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.Input((4,), dtype=dtype), keras.layers.Dense(5, activation="tanh", dtype=dtype)]
    layers += [keras.layers.BatchNormalization(momentum=0.5, synchronized=True, dtype=dtype)] if normalizes else []
    model = keras.Sequential([*layers, keras.layers.Dense(1, dtype=dtype)])
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"], **options)
    return model


def trained(
    synchronization: str | None, optimizer: str, *, epochs: int = 2, validates: bool = False, **options: Any
) -> dict[str, Any]:
    """Train over all workers, and return the results at the end; losses only if a test compares them."""
    chosen = strategy(synchronization)
    with chosen.scope():
        model = network(optimizer, **options)
    other = (X, Y) if validates else None
    history = model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, validation_data=other)
    return {"weights": flat(model.get_weights()), "history": history.history}


def flat(weights: list[Any]) -> list[float]:
    return np.concatenate([np.asarray(w, np.float64).ravel() for w in weights]).tolist()


def sent_by_heads(synchronization: str) -> dict[str, Any]:
    """Return the end of a training, and the bytes that this worker gives to others at a meeting, by who they are."""
    really, bytes_to = TracedCollective.all_reduce, {"heads": 0, "near": 0, "all": 0}

    def counted(self: TracedCollective, values: Any, labels: Any = (), **options: Any) -> Any:
        if any(label.startswith(("mean of", "fragment")) for label in labels):
            island = strategy(synchronization).apart.island
            who = "heads" if self is island.heads else "near" if self is island.near else "all"
            bytes_to[who] += sum(int(value.shape.num_elements()) * value.dtype.size for value in values)
        return really(self, values, labels, **options)

    TracedCollective.all_reduce = counted  # type: ignore[method-assign, assignment]
    try:
        found = trained(synchronization, "adam")
    finally:
        TracedCollective.all_reduce = really  # type: ignore[method-assign]
    return found | {"bytes": bytes_to}


class Simulation:
    """Workers side by side on one device: each a plain model, which trains on the rows that the worker would have.

    Workers that reduce in every step, so many after each other, are one model.
    """

    def __init__(self, optimizer: str, *, inside: int = 1, **options: Any) -> None:
        self._inside = inside
        self.models = [network(optimizer, **options) for _ in range(WORKERS // inside)]
        for model in self.models:
            model.optimizer.build(model.trainable_variables)

    def run(self, epochs: int, after: Callable[[int], None]) -> None:
        """Train; ``after`` is called with the number of steps that all workers have taken."""
        step = 0
        for _ in range(epochs):
            for first in range(0, len(X), BATCH):
                x, y = X[first : first + BATCH], Y[first : first + BATCH]
                bounds = Shares.equal(WORKERS).bounds(len(x))[:: self._inside]
                for model, begin, end in zip(self.models, bounds, bounds[1:], strict=False):
                    model.train_on_batch(x[begin:end], y[begin:end])
                step += 1
                after(step)

    def average(self, *, moments: bool = True) -> None:
        """Let all models have the mean of weights, states and slots."""
        kinds = [model.weights + (model.optimizer.variables if moments else []) for model in self.models]
        for variables in zip(*kinds, strict=True):
            if "float" in variables[0].dtype:
                mean = np.mean([variable.numpy() for variable in variables], axis=0)
                for variable in variables:
                    variable.assign(mean)

    def mean(self) -> list[float]:
        return np.mean([flat(model.get_weights()) for model in self.models], axis=0).tolist()


def local_sgd(every: int, optimizer: str, normalizes: bool, moments: bool = True, inside: int = 1) -> dict[str, Any]:
    """Return the end of a training of local steps, and of its simulation."""
    text = f"local-sgd:every={every},average_moments={str(moments).lower()},inside={inside}"
    seen = trained(text, optimizer, normalizes=normalizes, validates=True)
    if RANK:
        return seen
    simulation = Simulation(optimizer, normalizes=normalizes, inside=inside)
    simulation.run(2, lambda step: simulation.average(moments=moments) if step % every == 0 else None)
    return seen | {"simulated": simulation.mean()}


def part_of_a_mean() -> float:
    """Return what this worker adds to a metric's variable that is a mean over replicas, all of which have 1."""
    with strategy("local-sgd:every=2").scope():
        model = network("sgd")
        one = keras.metrics.Metric().add_variable((), "ones", aggregation="mean")
    local = local_steps.of(model)
    assert local is not None
    return float(local._part(one))


def post_local_sgd(after: int, every: int, optimizer: str) -> dict[str, Any]:
    """Return the end of a training whose first steps reduce gradients, and of its simulation."""
    seen = trained(f"post-local-sgd:after={after},every={every}", optimizer)
    if RANK:
        return seen
    simulation = Simulation(optimizer)
    whole = network(optimizer)  # trains the first steps, on whole batches
    whole.optimizer.build(whole.trainable_variables)
    batches = iter([(X[first : first + BATCH], Y[first : first + BATCH]) for first in range(0, len(X), BATCH)] * 2)

    def meet(step: int) -> None:
        x, y = next(batches)
        if step <= after:
            whole.train_on_batch(x, y)
            for model in simulation.models:
                for variable, other in zip(everything(model), everything(whole), strict=True):
                    variable.assign(other)
        elif (step - after) % every == 0:
            simulation.average()

    simulation.run(2, meet)
    return seen | {"simulated": simulation.mean()}


def everything(model: keras.Model) -> list[Any]:
    return [*model.weights, *model.optimizer.variables]


def data_parallel(optimizer: str, normalizes: bool) -> dict[str, Any]:
    """Return the ends of a training that meets in every step, and of data parallelism."""
    ends = {"met": "local-sgd:every=1", "reduced": None}
    return {name: trained(text, optimizer, normalizes=normalizes, validates=True) for name, text in ends.items()}


def same_ends(names: list[str], optimizer: str) -> list[list[float]]:
    """Return the weights at the end of trainings that should be alike."""
    return [trained(name, optimizer)["weights"] for name in names]


def outer_steps(options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the end of a training with outer steps, and of its simulation, in NumPy."""
    given = ",".join(f"{name}={value}" for name, value in options.items())
    seen = trained(f"diloco:{given}", "momentum", normalizes=True, dtype=dtype)
    if RANK:
        return seen
    schedule = meeting_schedules.require(f"diloco:{given}")
    assert isinstance(schedule, meeting_schedules.DiLoCo)
    simulation = Simulation("momentum", normalizes=True, dtype=dtype)
    weights = [model.trainable_variables for model in simulation.models]
    shapes = [tuple(variable.shape) for variable in weights[0]]
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def vector(worker: int) -> np.ndarray:
        return np.concatenate([variable.numpy().ravel() for variable in weights[worker]]).astype(np.float64)

    agreed = vector(0)
    rate = float(np.float32(0.7))  # as Keras keeps it
    velocity, sent = np.zeros_like(agreed), dict[int, Any]()
    edges = [len(agreed) * number // schedule.fragments for number in range(schedule.fragments + 1)]

    def apply(fragment: int, delta: np.ndarray, states: list[np.ndarray], own: list[np.ndarray]) -> None:
        part = slice(edges[fragment], edges[fragment + 1])
        velocity[part] = 0.5 * velocity[part] - rate * delta
        agreed[part] += 0.5 * velocity[part] - rate * delta
        for worker, model in enumerate(simulation.models):
            values = vector(worker)
            if schedule.keep is None:  # what was learned since the fragment was sent is added
                values[part] += agreed[part] - own[worker]
            else:
                values[part] = schedule.keep * values[part] + (1 - schedule.keep) * agreed[part]
            for variable, value, shape in zip(weights[worker], np.split(values, cuts), shapes, strict=True):
                variable.assign(value.reshape(shape))
            for variable, value in zip(model.non_trainable_variables, states, strict=False):
                variable.assign(value)

    def after(step: int) -> None:
        for event in schedule.events(step):
            part = slice(edges[event.fragment], edges[event.fragment + 1])
            if event.kind != "apply":
                own = [vector(worker)[part] for worker in range(WORKERS)]
                delta = np.mean([agreed[part] - values for values in own], axis=0)
                is_last = event.fragment == schedule.fragments - 1
                all_states = [[v.numpy() for v in moving(model)] for model in simulation.models] if is_last else []
                states = [np.mean(values, axis=0) for values in zip(*all_states, strict=True)]
                sent[event.fragment] = delta, states, own
            if event.kind != "send":
                apply(event.fragment, *sent.pop(event.fragment))

    simulation.run(2, after)
    return seen | {"simulated": simulation.mean()}


def moving(model: keras.Model) -> list[Any]:
    return [variable for variable in model.non_trainable_variables if "float" in variable.dtype]


def mixed(text: str, dtype: str) -> dict[str, Any]:
    """Return the end of a training of springs or of gossip, and of its simulation."""
    seen = trained(text, "sgd", dtype=dtype)
    if RANK:
        return seen
    schedule = meeting_schedules.require(text)
    simulation = Simulation("sgd", dtype=dtype)
    center = simulation.models[0].get_weights()

    def after(step: int) -> None:
        nonlocal center
        for event in schedule.events(step) if schedule is not None else ():
            every = [model.get_weights() for model in simulation.models]
            if isinstance(schedule, meeting_schedules.Gossip):
                table = np.array(meeting_schedules.mixing(schedule, WORKERS, event.fragment), dtype)
                mixtures = [np.tensordot(table, np.stack(values), axes=1) for values in zip(*every, strict=True)]
                new = [[mixture[worker] for mixture in mixtures] for worker in range(WORKERS)]
            else:
                alpha = getattr(schedule, "alpha")  # noqa: B009
                pulls = [[alpha * (w - c) for w, c in zip(values, center, strict=True)] for values in every]
                new = [[w - e for w, e in zip(*pair, strict=True)] for pair in zip(every, pulls, strict=True)]
                center = [c + sum(parts) for c, *parts in zip(center, *pulls, strict=True)]
            for model, values in zip(simulation.models, new, strict=True):
                model.set_weights(values)

    simulation.run(2, after)
    is_center = not isinstance(schedule, meeting_schedules.Gossip)
    return seen | {"simulated": flat(center) if is_center else simulation.mean()}


class _Ends(keras.callbacks.Callback):
    """Notes this worker's own weights before its first batch, and leaves training before a later one."""

    def __init__(self, after: int | None) -> None:
        super().__init__()
        self._after, self._batches = after, 0
        self.began: list[float] = []
        self.left: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._batches == 0:
            self.began = flat([one.numpy() for one in self.model.weights])
        if self._batches == self._after:
            self.left = flat([one.numpy() for one in self.model.weights])
            raise KeyboardInterrupt
        self._batches += 1


def backed_up(
    text: str, folder: str, after: int | None, epochs: int = 2, optimizer: str = "adam", **options: Any
) -> dict[str, Any]:
    """Train with backups after each step, up to an interruption if there is one."""
    with strategy(text).scope():
        model = network(optimizer, normalizes=True, **options)
    ends = _Ends(after)
    backup = BackupAndRestore(folder, save_freq=1, delete_checkpoint=False, asynchronous=False)
    history = None
    with contextlib.suppress(KeyboardInterrupt):
        history = model.fit(
            *(X, Y),
            batch_size=BATCH,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            validation_data=(X, Y),
            callbacks=[ends, backup],
        )
    found = None if history is None else {"weights": flat(model.get_weights()), "history": history.history}
    local = local_steps.of(model)
    assert local is not None
    variables = [variable for state in local.sharded_state() for variable in state.variables]
    every = [int(one.numpy()) for one in variables if one.name == "steps_between_meetings"]
    return {"ended": found, "began": ends.began, "left": ends.left, "every": every}


def chosen_interval(folder: str) -> dict[str, Any]:
    """Return what every="auto" became before and after an interruption, and the end of training beside simulations."""
    text = "local-sgd:every=auto"
    before = backed_up(text, folder, 14, epochs=4)["every"]
    seen = backed_up(text, folder, None, epochs=4)
    found = {"before": before, "after": seen["every"], "weights": seen["ended"]["weights"]}
    if RANK:
        return found
    schedule = meeting_schedules.LocalSGD(every=seen["every"][0])
    simulation = Simulation("adam", normalizes=True)
    simulation.run(4, lambda step: simulation.average() if step >= 12 and schedule.events(step) else None)
    return found | {"simulated": simulation.mean()}


def resumed(text: str, folder: str, after: list[int], **options: Any) -> list[Any]:
    """Return the end of a training that was never interrupted, and of one that was, several times."""
    never = backed_up(text, f"{folder}/never", None, **options)["ended"]
    for steps in after:
        assert backed_up(text, f"{folder}/resumed", steps, **options)["ended"] is None
    return [never, backed_up(text, f"{folder}/resumed", None, **options)["ended"]]


class _Looks(keras.callbacks.Callback):
    """Notes after each batch what the model shows and what this worker has; worker 1 wants to stop after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[float]] = []
        self.own: list[list[float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.shown.append(flat(self.model.get_weights()))
        self.own.append(flat([one.numpy() for one in self.model.weights]))
        if batch == 4 and RANK == 1:
            self.model.stop_training = True


def manners() -> dict[str, Any]:
    """Return what callbacks see between meetings, and how often they were called before all have stopped."""
    with strategy("local-sgd:every=3").scope():
        model = network("sgd")
    looks = _Looks()
    model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=[looks])
    evaluated = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    return {"shown": looks.shown, "own": looks.own, "ended": flat(model.get_weights()), "evaluated": evaluated}


def weights_of_a_callback() -> list[list[float]]:
    """Return the weights that a callback sets at the end of an epoch, and those that training begins with then."""
    with strategy("local-sgd:every=3").scope():
        model = network("sgd")
    seen: list[list[float]] = []

    def set_zero(epoch: int, logs: Any) -> None:
        model.set_weights([np.zeros_like(one) for one in model.get_weights()])
        seen.append(flat(model.get_weights()))

    def note(batch: int, logs: Any) -> None:
        if batch == 0:
            seen.append(flat([one.numpy() for one in model.weights]))

    looks = keras.callbacks.LambdaCallback(on_epoch_end=set_zero, on_train_batch_end=note)
    model.fit(X, 0 * Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[looks])
    return seen


def other_meetings() -> list[Any]:
    """Return what errors name where a worker has another schedule, or has taken a step more than the others."""

    def fit(text: str, *, ahead: int = 0) -> None:
        with strategy(text).scope():
            model = network("sgd")
        for _ in range(2 if ahead else 1):
            model.fit(X, Y, batch_size=BATCH, verbose=0)
            planted.of_model(model).local_steps._count.assign_add(ahead)

    found = []
    for ask in (lambda: fit(f"local-sgd:every={31 + RANK}"), lambda: fit("local-sgd:every=33", ahead=RANK or 2)):
        try:
            ask()
        except errors.DisagreementError as error:
            found.append([error.name, error.received, error.workers, str(error)])
    return found


def refusals() -> dict[str, list[str]]:
    """Return what is refused, with the names in the errors."""

    def eager() -> None:
        with strategy("local-sgd:every=3").scope():
            model = network("sgd", run_eagerly=True)
        model.fit(X, Y, batch_size=BATCH, verbose=0)

    def on_batch() -> None:
        with strategy("local-sgd:every=3").scope():
            model = network("sgd")
        model.train_on_batch(X[:BATCH], Y[:BATCH])

    def own_loop(every: int = 3, *, traced: bool = True) -> None:
        chosen = strategy(f"local-sgd:every={every}")
        with chosen.scope():
            model = network("sgd")

        def step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        def on_all(x: tf.Tensor) -> None:
            chosen.run(step, args=(x,))

        (tf.function(on_all) if traced else on_all)(tf.constant(X[:BATCH]))

    own_loop(every=1)  # is data parallelism
    asked: dict[str, Callable[[], Any]] = {
        "own loop": own_loop,
        "own eager loop": functools.partial(own_loop, traced=False),
        "eager": eager,
        "on batch": on_batch,
        "island": lambda: tfdist.strategies.MultiWorkerMirroredStrategy(
            synchronization=tfdist.strategies.LocalSGD(every=3, inside=3)
        ),
        "sharded": lambda: tfdist.strategies.MultiWorkerMirroredStrategy(
            synchronization="local-sgd:every=3", shard_optimizer=1
        ),
        "mirrored": lambda: tfdist.strategies.create("mirrored", synchronization="local-sgd:every=3"),
        "codec": lambda: tfdist.strategies.MultiWorkerMirroredStrategy(
            synchronization=tfdist.strategies.DiLoCo(every=3, wire="powersgd")
        ),
    }
    found = {}
    for name, ask in asked.items():
        try:
            ask()
        except errors.TfdistError as error:
            found[name] = [type(error).__name__, str(error.name)]
    return found
