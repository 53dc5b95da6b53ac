"""Small data, models and outcomes that several features use."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Function, feature, keras

# 36 examples are three batches of 12, which 2, 3 and 4 replicas share evenly; 41 end with a batch of 5, 37 of 1
BATCH = 12
EVEN, PARTIAL = 36, 41
WIDTH = 6
CLASSES = 3


def row(name: str, summary: str, function: Function, **options: Any) -> None:
    """Register a function as a row with this name and the options of `feature`, for rows that differ in arguments."""
    function.__name__, function.__doc__ = name, summary
    feature(**options)(function)


def regression(rows: int, *, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (rows, 6) and targets (rows, 1), float32; rows differ, so a wrong weighting shows."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, WIDTH)).astype("float32")
    y = np.tanh(x[:, :1] - x[:, 1:2]) + 0.05 * np.arange(rows)[:, None] / max(rows, 1)
    return x, y.astype("float32")


def classification(rows: int, *, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (rows, 6), float32, and labels (rows,), int32."""
    random = np.random.default_rng(2)
    x = random.normal(size=(rows, WIDTH)).astype("float32")
    return x, (np.abs(x[:, 0] * 3 + x[:, 1]).astype("int32")) % classes


def in_batches(*arrays: Any, size: int = BATCH) -> Iterator[Any]:
    for begin in range(0, len(arrays[0]), size):
        yield tuple(array[begin : begin + size] for array in arrays)


def dense(*layers: Any, outputs: int = 1, activation: str | None = None, units: int = 8) -> Any:
    """Return a model of inputs (batch, 6): Dense(units), the given layers, Dense(outputs)."""
    first, last = keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(outputs, activation=activation)
    return keras.Sequential([keras.Input((WIDTH,)), first, *layers, last])


def sgd(**options: Any) -> Any:
    """Return SGD with momentum, whose steps are as large as the gradients, so a wrong gradient shows in the weights."""
    return keras.optimizers.SGD(**{"learning_rate": 0.1, "momentum": 0.9, **options})


def deep() -> Any:
    """Return a model with one more hidden layer than `dense()`."""
    return dense(keras.layers.Dense(8, activation="tanh"))


def of_kind(kind: Any, **options: Any) -> Any:
    """Return a model of a class, with the inputs and outputs of `dense`."""
    inner = dense(**options)
    return kind(inner.inputs, inner.outputs)


def compiled(
    ctx: Context, make: Callable[[], Any] = dense, optimizer: Callable[[], Any] = sgd, loss: Any = "mse", **options: Any
) -> Any:
    """Return a model and an optimizer, made and compiled in the scope."""
    with ctx.scope():
        model = make()
        model.compile(optimizer(), loss, **options)
    return model


def variables(ctx: Context, named: Iterable[Any], prefix: str) -> dict[str, np.ndarray]:
    """Return the values of variables on this worker, and how far its replicas' copies are apart (0 on one device)."""
    values: dict[str, np.ndarray] = {}
    spread = 0.0
    for index, variable in enumerate(named):
        copies = [copy.astype("float64") for copy in ctx.local_values(variable) if copy.dtype.kind in "biuf"]
        if copies:
            values[f"{prefix}/{index:02d} {variable.name}"] = copies[0]
        for copy in copies[1:]:
            with np.errstate(invalid="ignore"):
                apart = np.where(copies[0] == copy, 0.0, np.abs(copies[0] - copy))
            spread = max(spread, float(np.max(apart, initial=0.0)))
    return {**values, f"{prefix}/spread over replicas": np.asarray(spread)}


def history(result: Any) -> dict[str, np.ndarray]:
    return logs(result.history, "history")


def logs(values: Mapping[str, Any], prefix: str) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": np.asarray(value, dtype="float64") for name, value in values.items()}


def prefixed(prefix: str, outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}: {name}": value for name, value in outcome.items()}


def losses_and_weights(outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outcome.items() if name == "history/loss" or name.startswith("weights/")}


def trained(
    ctx: Context, model: Any, x: Any, y: Any = None, *, batch_size: int | None = BATCH, epochs: int = 2, **fit: Any
) -> dict[str, np.ndarray]:
    """Fit without shuffling and return the history, the weights and the optimizer's variables."""
    result = model.fit(x, y, batch_size=batch_size, epochs=epochs, **{"shuffle": False, "verbose": 0, **fit})
    return {**history(result), **state(ctx, model)}


def state(ctx: Context, model: Any) -> dict[str, np.ndarray]:
    return {**variables(ctx, model.weights, "weights"), **variables(ctx, model.optimizer.variables, "optimizer")}
