"""Keras with a detail of its code moved, as another version may have it, under any strategy of tfdist.

Names are changed in the bytecode of Keras' own methods, for as long as a `with` block lasts; what they do stays the
same. Run in a worker process; functions return JSON values.
"""

import contextlib
import functools
import importlib
import unittest.mock
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.trainers.trainer import Trainer

from tfdist.compat import version_pairs
from tfdist.training.checks import untested

# An odd number of rows: two replicas that divided by hand, or took the whole batch each, would have other numbers.
X = np.random.RandomState(0).normal(size=(11, 4)).astype(np.float32)
Y = 3 * X.sum(axis=1, keepdims=True)

METHODS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda model: model.fit(X, Y, batch_size=5, shuffle=False, verbose=0).history["loss"],
    "evaluate": lambda model: model.evaluate(X, Y, batch_size=5, verbose=0),
    "predict": lambda model: model.predict(X, batch_size=5, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
}


def strategy_of(cases_of: str) -> tf.distribute.Strategy:
    """Return the strategy that a module of cases has in this process."""
    module: Any = importlib.import_module(cases_of)
    return module.STRATEGY if hasattr(module, "STRATEGY") else module.strategy()


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    def new(kept: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in kept)

    inner = tuple(_renamed(c, names) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(
        co_varnames=new(code.co_varnames),
        co_cellvars=new(code.co_cellvars),
        co_freevars=new(code.co_freevars),
        co_consts=inner,
    )


@contextlib.contextmanager
def locals_renamed(**names: str) -> Iterator[None]:
    """Let Keras' trainer and its iterators name local variables otherwise."""
    methods = [vars(TensorFlowTrainer)[name] for name in (*METHODS, "_maybe_symbolic_build", "_make_function")]
    methods += [vars(TensorFlowTrainer)["make_predict_function"], vars(Trainer)["compile"], TFEpochIterator.__init__]
    functions = [_innermost(method) for method in methods]
    before = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = _renamed(function.__code__, names)
    try:
        yield
    finally:
        for function, code in zip(functions, before, strict=True):
            function.__code__ = code


@contextlib.contextmanager
def method_renamed(old: str, new: str) -> Iterator[None]:
    """Let Keras' trainer call one of its methods by another name."""
    changed = []
    for method in vars(TensorFlowTrainer).values():
        function = _innermost(method)
        if hasattr(function, "__code__") and old in function.__code__.co_names:
            changed.append((function, function.__code__))
    setattr(TensorFlowTrainer, new, vars(TensorFlowTrainer)[old])
    for function, code in changed:
        function.__code__ = code.replace(co_names=tuple(new if name == old else name for name in code.co_names))
    try:
        yield
    finally:
        delattr(TensorFlowTrainer, new)
        for function, code in changed:
            function.__code__ = code


def _innermost(method: Any) -> Any:
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


def model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])


def numbers_of(method: Callable[[Any], Any], scope: Any, *, eagerly: bool = False) -> list[float]:
    """Return the result of a method of Keras on a new model, and the weights that it leaves behind."""
    with scope:
        network = model()  # its weights are not read before: TensorFlow asks the strategy for each
        network.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eagerly)
    returned = np.ravel(method(network)).tolist()
    return [*returned, *np.concatenate([weight.ravel() for weight in network.get_weights()]).tolist()]


@functools.cache
def numbers_of_one_device(name: str) -> list[float]:
    """Return the numbers of a method of Keras by its name, whatever is broken in a scope."""
    return numbers_of(METHODS[name], contextlib.nullcontext(), eagerly=True)


def what_happens(
    strategy: tf.distribute.Strategy, breaking: Callable[[], Any], methods: Sequence[str] = tuple(METHODS)
) -> dict[str, str]:
    """Call each of Keras' methods on a new model while something is broken, and return what came of it.

    What it raised, or "right" or "wrong": whether numbers and weights are those of one device.
    """
    seen = {}
    for name in methods:
        with breaking():
            try:
                found = numbers_of(METHODS[name], strategy.scope())
            except Exception as error:  # noqa: BLE001 - the test reads it
                seen[name] = f"{type(error).__name__}: {error}"
                continue
        expected = numbers_of_one_device(name)
        close = len(found) == len(expected) and np.allclose(found, expected, rtol=1e-5, atol=1e-5)
        seen[name] = "right" if close else f"wrong: {found}, not {expected}"
    return seen


BREAKS: dict[str, Callable[[], Any]] = {
    "self": lambda: locals_renamed(self="trainer"),
    "callbacks": lambda: locals_renamed(callbacks="callback_list"),
    "_make_function": lambda: method_renamed("_make_function", "_build_function"),
    "_maybe_symbolic_build": lambda: method_renamed("_maybe_symbolic_build", "_symbolic_build_if_needed"),
    "nothing": contextlib.nullcontext,
}


def refusals(cases_of: str, moved: str) -> dict[str, str]:
    """Return the errors of Keras' methods while a detail has moved."""
    return what_happens(strategy_of(cases_of), BREAKS[moved])


def a_batch_of_another_model_inside_fit(cases_of: str) -> list[str]:
    """Train one model on a batch from a callback of another one's `fit`, on one device and under the strategy."""

    def trained(network: keras.Model) -> list[float]:
        other = keras.models.clone_model(network)
        other.set_weights(network.get_weights())
        other.compile(keras.optimizers.SGD(0.1), "mse")
        once = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: other.train_on_batch(X, Y))
        network.fit(X, Y, batch_size=5, shuffle=False, verbose=0, callbacks=[once])
        return np.concatenate([weight.ravel() for weight in other.get_weights()]).tolist()

    def in_scope(network: keras.Model) -> list[float]:
        with strategy.scope():
            return trained(network)

    strategy = strategy_of(cases_of)
    one, two = numbers_of(trained, contextlib.nullcontext()), numbers_of(in_scope, strategy.scope())
    return ["right"] if np.allclose(one, two, rtol=1e-5, atol=1e-5) else [str(one), str(two)]


def loop_of_ones_own(cases_of: str) -> dict[str, Any]:
    """Run a loop of the user's own, with a condition for AutoGraph inside, while Keras is unrecognizable."""
    strategy = strategy_of(cases_of)
    with strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    def step(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0.0:  # noqa: SIM108 - a condition that AutoGraph has to convert
            found = tf.constant(1.0)
        else:
            found = tf.constant(-1.0)
        return found

    @tf.function
    def traced() -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=(tf.constant([1.0]),)), axis=None)

    with locals_renamed(self="trainer"):
        eager = strategy.run(lambda: tf.constant(2.0))
        seen = {
            "traced": float(traced()),
            "eager": [float(value) for value in strategy.experimental_local_results(eager)],
            "replicas": strategy.num_replicas_in_sync,
        }
    with strategy.scope():
        count.assign(3.0)
    return seen | {"count": float(count.numpy())}


def in_another_package(cases_of: str) -> dict[str, str]:
    """Call the strategy from code that stands in packages of other names."""
    strategy = strategy_of(cases_of)
    seen = {}
    for package in ("tf_keras.src.engine.training", "keras_hub.src.models", "mine"):
        loop = FunctionType((lambda: strategy.run(lambda: 1)).__code__, {"__name__": package}, closure=_cells(strategy))
        try:
            loop()
            seen[package] = "nothing"
        except Exception as error:  # noqa: BLE001 - the test reads it
            seen[package] = f"{type(error).__name__}: {error}"
    return seen


def _cells(*values: Any) -> tuple[CellType, ...]:
    return tuple(map(CellType, values))


def first_used_otherwise(cases_of: str) -> dict[str, str]:
    """Use models that were created outside of the scope, or never compiled."""
    strategy = strategy_of(cases_of)
    outside = model()
    outside.compile("sgd", "mse")
    with strategy.scope():
        bare = model()
    seen = {}
    for name, call in (*METHODS.items(), ("uncompiled", lambda _: bare.predict_on_batch(X))):
        try:
            with strategy.scope() if name != "uncompiled" else contextlib.nullcontext():
                call(outside)
            seen[name] = "nothing"
        except Exception as error:  # noqa: BLE001 - the test reads it
            seen[name] = f"{type(error).__name__}: {error}"
    return seen | {"then": str(bare.predict(X, batch_size=5, verbose=0).shape)}


def untested_pair(cases_of: str) -> dict[str, str]:
    """Return the errors of Keras' methods where a step of an untested pair was wrong, and where it was right."""
    strategy = strategy_of(cases_of)
    seen = {}
    with (
        unittest.mock.patch.object(version_pairs, "TESTED", ()),
        unittest.mock.patch.object(untested, "_settled", set()),
        unittest.mock.patch.object(untested, "_note", return_value=None),
    ):
        with unittest.mock.patch.object(untested, "compare", return_value="weights: apart by 0.03"):
            seen["wrong"] = what_happens(strategy, contextlib.nullcontext, ["fit"])["fit"]
        with unittest.mock.patch.object(untested, "compare", return_value=""):
            seen["right"] = what_happens(strategy, contextlib.nullcontext, ["fit"])["fit"]
    return seen
