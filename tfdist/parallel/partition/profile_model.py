"""Measurement of a model's profile on this device: layers in turns, and the whole model several times in a row."""

import dataclasses
import functools
import inspect
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras.symbolic import graphs, nested_models
from tfdist.errors import UnsupportedError
from tfdist.parallel.compute import chains
from tfdist.planner import machine
from tfdist.planner.layer_profile import LayerProfile, Profile

_FEWEST, _MOST = 5, 30  # bounds of the number of rounds
_STEPS = 4  # the least number of calls in a row
_BLOCK = 1 / 24  # time of one series of calls in a row, as a fraction of the time for layers
LOSS = "(loss)"


@dataclass(frozen=True, kw_only=True)
class _Measured:
    forward: Callable[[], Any]
    both: Callable[[], Any]
    output_bytes: float
    gradient_bytes: float
    kept_bytes: float


def require_graph(model: keras.Model) -> graphs.Functional:
    """Return the graph of layers by which a model computes."""
    graph = graphs.graph_of(model)
    if graph is None:
        raise UnsupportedError(
            f"{model.name!r} is a {type(model).__name__}, and no Sequential or functional model that is built: it has "
            "no graph of layers that could be cut. Make it with keras.Sequential([keras.Input(...), ...]), or "
            "keras.Model(inputs, outputs) of layers; blocks of your own may be layers in it."
        )
    return graph


def profile(
    model: keras.Model,
    batch: Any,
    *,
    batch_sizes: Iterable[int] = (),
    in_fit: Callable[[Any, int], float] | None = None,
    seconds: float = 6.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure the cost of each layer of a model on this device.

    Weights, the optimizer and metrics have their former values when the function returns.

    Args:
        model: a built Sequential or functional model. Its loss and its optimizer count if it is compiled.
        batch: a batch of `fit` for all devices: a tuple (x, y) or (x, y, sample_weight) of arrays, or x.
        batch_sizes: further batch sizes with which layers are measured.
        in_fit: a function that trains a number of steps with a batch, and returns the seconds of one step. With None,
            the profile has no fixed time of a step.
        seconds: time for measuring layers, at least five times each; the whole model takes about as long again.
        clock: a function that returns seconds. If TensorFlow has one thread on a processor, `time.process_time` leaves
            out the time of other processes.
    Raises:
        UnsupportedError: the model has no graph of layers.
        ConfigError: the batch has no example.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")])
        >>> profile(model, tf.ones([4, 3])).layers[0].parameter_bytes
        32
    """
    graph = require_graph(model)
    flat = nested_models.flattened(graph)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple) else (batch,))
    rows = rows_of(batch)
    sizes = sorted({rows, *(validation.integer("a batch size", one, minimum=1) for one in batch_sizes)})
    kept = [(variable, variable.numpy()) for variable in _variables(model)]
    try:
        at = [_prepared(model, graph, flat, _rows((x, y, weight), size)) for size in sizes]
        # all functions in turns, so that other work of the machine affects all of them alike
        timed = [_smallest_call(), *(function for one in at for function in one.functions)]
        call_seconds, *medians = _medians(timed, seconds, clock)
        found = iter(max(one - call_seconds, 0.0) for one in medians)
        layers = [_profiled(flat, one, [next(found) for _ in one.functions]) for one in at]
        fit = None if in_fit is None else functools.partial(in_fit, (x, y, weight))
        wholes, beside = _seconds_in_series([one.whole for one in at], fit, _BLOCK * seconds, clock)
        update, slots = _update(model, call_seconds, clock)
        adding = _adding_seconds(at[-1].whole()[1], clock)
        fixed = 0.0
        if beside is not None:  # in a step gradients are in the caches, so an update may take less than one by itself
            rest = max(beside + call_seconds, 0.0)
            update = min(update, rest)
            fixed = rest - update
        return Profile(
            model=model.name,
            batch=rows,
            batch_sizes=tuple(sizes),
            layers=tuple(_merged(of_sizes) for of_sizes in zip(*layers, strict=True)),
            whole_seconds=tuple(max(statistics.median(times) - call_seconds, 0.0) for times in wholes),
            repeated_seconds=tuple(max(one - call_seconds, 0.0) for one in wholes[-1]),
            update_seconds=update,
            adding_seconds=max(adding - call_seconds, 0.0),
            fixed_seconds=fixed,
            call_seconds=call_seconds,
            slot_bytes=slots,
            machine=machine.describe(),
        )
    finally:
        for variable, value in kept:
            variable.assign(value)


def rows_of(batch: Any) -> int:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple) else (batch,))
    rows = int(keras.tree.flatten(x)[0].shape[0])
    return validation.integer("the batch", rows, minimum=1, hint="Give a batch of one example or more.")


def step_seconds(
    model: keras.Model,
    batch: Any,
    steps: int,
    *,
    fit: Callable[..., Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Train some steps with one batch, and return the median seconds of a step.

    The first call, which traces, does not count. The median leaves out calls during preparation or garbage collection.
    """
    ends = _Ends(clock)
    batches = tf.data.Dataset.from_tensors(tuple(one for one in batch if one is not None)).repeat()
    train = model.fit if fit is None else functools.partial(fit, model)
    each = int(model.steps_per_execution)
    train(batches, steps_per_epoch=(steps + 1) * each, epochs=1, callbacks=[ends], shuffle=False, verbose=0)
    return statistics.median((later - sooner) / each for sooner, later in itertools.pairwise(ends.seconds))


class _Ends(keras.callbacks.Callback):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.seconds: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(self._clock())


def _variables(model: keras.Model) -> list[Any]:
    metrics = [variable for metric in keras_trainer.metrics(model) for variable in metric.variables]
    return [*keras_variables.persistent_variables(model), *metrics]


def _rows(values: Any, size: int) -> Any:
    """Return this many rows of each array, which repeat from the first if there are too few."""

    def of(value: Any) -> Any:
        if value is None:
            return None
        tensor = tf.convert_to_tensor(value)
        return tf.gather(tensor, tf.range(size) % tf.shape(tensor)[0])

    return keras.tree.map_structure(of, values, none_is_leaf=True)


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Functions to measure at one batch size: those of the calls of layers, of the loss, and of the whole model."""

    size: int
    calls: list[_Measured]
    whole: Callable[[], Any]

    @property
    def functions(self) -> list[Callable[[], Any]]:
        return [function for one in self.calls for function in (one.forward, one.both)]


def _prepared(model: keras.Model, graph: graphs.Functional, flat: nested_models.Flat, data: Any) -> _Prepared:
    x, y, weight = data
    size = int(keras.tree.flatten(x)[0].shape[0])
    inputs = zip(graph.inputs, graphs.standardized(graph, x), strict=True)
    values = {id(tensor): value for tensor, value in inputs}
    measured: list[_Measured] = []
    differentiated: set[int] = set()  # values that depend on weights; training needs gradients of these alone
    for call in flat.calls:
        args, kwargs = call.arguments(values)
        one, results = _measured(call.operation, args, kwargs, differentiated)
        values.update({id(tensor): value for tensor, value in zip(call.makes, results, strict=True)})
        taken = [id(values[id(tensor)]) for tensor in call.takes]
        if getattr(call.operation, "trainable_variables", ()) or not differentiated.isdisjoint(taken):
            differentiated.update(map(id, results))
        measured.append(one)
    outputs = tuple(values[id(output)] for output in flat.outputs)
    y_pred = model(x, training=False)  # gives the structure of the outputs
    measured.append(_measured(lambda *flat: _loss(model, x, y, flat, y_pred, weight), outputs, {}, differentiated)[0])
    return _Prepared(size=size, calls=measured, whole=_whole(model, x, y, weight))


def _medians(functions: Sequence[Callable[[], Any]], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Return the median seconds of a call of each function; the functions are called in turns."""
    for function in functions:
        function()  # the first call traces
    first = sum(_seconds(function, clock) for function in functions)
    count = _fitting_count(seconds, first, _FEWEST)
    rounds = [[_seconds(function, clock) for function in functions] for _ in range(count)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _seconds_in_series(
    wholes: Sequence[Callable[[], Any]], fit: Callable[[int], float] | None, seconds: float, clock: Callable[[], float]
) -> tuple[list[list[float]], float | None]:
    """Return the seconds of several calls in a row for each function, and the additional seconds of a step of `fit`.

    Calls in a row find their data in the caches, as they do in training.
    """
    for whole in wholes:
        whole()  # the first call traces
    counts = [_fitting_count(seconds, _seconds(one, clock), _STEPS) for one in wholes]
    found: list[list[float]] = [[] for _ in wholes]
    beside: list[float] = []
    for _ in range(_FEWEST):
        series = [_series(whole, count, clock) for whole, count in zip(wholes, counts, strict=True)]
        for all_of_it, part in zip(found, series, strict=True):
            all_of_it += part
        if fit is not None:
            beside.append(fit(counts[-1]) - statistics.median(series[-1]))
    return found, statistics.median(beside) if beside else None


def _fitting_count(seconds: float, each: float, fewest: int) -> int:
    """Return how many measurements of ``each`` seconds fill ``seconds``, within bounds."""
    return min(max(round(seconds / max(each, 1e-9)), fewest), _MOST)


def _profiled(flat: nested_models.Flat, prepared: _Prepared, seconds: Sequence[float]) -> list[LayerProfile]:
    calls, size = flat.calls, prepared.size
    makers = {id(tensor): place for place, call in enumerate(calls) for tensor in call.makes}
    seen: set[int] = set()
    layers = []
    for place, one in enumerate(prepared.calls):
        times: dict[str, Any] = {"forward_seconds": (seconds[2 * place],)}
        times["backward_seconds"] = (max(seconds[2 * place + 1] - seconds[2 * place], 0.0),)
        if place == len(calls):
            taken = _places(makers, flat.outputs)
            layers.append(LayerProfile(name=LOSS, may_begin_stage=False, inputs=taken, **times))
            continue
        layer = calls[place].operation
        is_layer = isinstance(layer, keras.layers.Layer)
        layers.append(
            LayerProfile(
                name=calls[place].name,
                kind=type(layer).__name__,
                may_begin_stage=is_layer and id(layer) not in seen,
                inputs=_places(makers, calls[place].takes),
                parameter_bytes=_bytes_of(layer.trainable_variables) if is_layer else 0,
                state_bytes=_bytes_of(layer.non_trainable_variables) if is_layer else 0,
                output_bytes=one.output_bytes / size,
                gradient_bytes=one.gradient_bytes / size,
                kept_bytes=one.kept_bytes / size,
                divides=_divides(layer, calls),
                joins=_joins(calls, place),
                **times,
            )
        )
        seen.add(id(layer))
    return layers


def _places(makers: dict[int, int], tensors: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({makers[id(one)] for one in tensors if id(one) in makers}))


def _measured(operation: Any, args: Any, kwargs: Any, differentiated: set[int]) -> tuple[_Measured, list[Any]]:
    if isinstance(operation, keras.layers.Layer) and "training" in inspect.signature(operation.call).parameters:
        kwargs = {**kwargs, "training": True}
    flat = keras.tree.flatten((args, kwargs))
    places = [place for place, one in enumerate(flat) if tf.is_tensor(one)]
    given = [flat[place] for place in places]
    has_gradient = [one.dtype.is_floating and id(one) in differentiated for one in given]
    variables = [one.value for one in getattr(operation, "trainable_variables", ())]
    counted: dict[str, int] = {}

    def run(tensors: Sequence[Any]) -> list[Any]:
        now = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            now[place] = tensor
        again, named = keras.tree.pack_sequence_as((args, kwargs), now)
        with tf.name_scope("layer"):  # some names are valid only inside of another scope
            found = operation(*again, **named)
        return [tf.convert_to_tensor(one) for one in keras.tree.flatten(found)]

    forward = tf.function(lambda *tensors: run(tensors), autograph=False)
    forward.get_concrete_function(*given)  # TensorFlow would warn of retracing if the call traced
    results = list(forward(*given))
    floats = [place for place, one in enumerate(results) if one.dtype.is_floating]
    cotangents = [tf.ones_like(results[place]) for place in floats]

    def both(tensors: Sequence[Any], back: Sequence[Any]) -> Any:
        watched = list(itertools.compress(tensors, has_gradient))
        with tf.GradientTape() as tape:
            tape.watch(watched)
            found = run(tensors)
        made = len(tf.compat.v1.get_default_graph().get_operations())
        gradients = tape.gradient([found[place] for place in floats], [*watched, *variables], output_gradients=back)
        counted["kept"] = _kept_bytes(tf.compat.v1.get_default_graph(), made, found)
        return found, [tf.convert_to_tensor(one) for one in gradients if one is not None]

    backward = tf.function(both, autograph=False)
    backward.get_concrete_function(given, cotangents)
    output = sum(_size(one) for one in results)
    return _Measured(
        forward=lambda: forward(*given),
        both=lambda: backward(given, cotangents),
        output_bytes=output,
        gradient_bytes=sum(_size(results[place]) for place in floats),
        kept_bytes=max(counted["kept"], output),
    ), results


def _kept_bytes(graph: Any, made: int, results: Sequence[Any]) -> int:
    """Return the bytes that a layer makes for its backward pass, without its inputs and weights."""
    operations = graph.get_operations()
    own = {id(one) for one in operations[:made] if one.type not in ("Placeholder", "Const", "ReadVariableOp")}
    needed = {one.ref(): one for later in operations[made:] for one in later.inputs if id(one.op) in own}
    needed.update({one.ref(): one for one in results})
    return sum(_size(one) for one in needed.values())


def _size(tensor: Any) -> int:
    count = tensor.shape.num_elements()
    return 0 if count is None or tensor.dtype.size is None else int(count * tensor.dtype.size)


def _bytes_of(variables: Iterable[Any]) -> int:
    return sum(_size(tf.convert_to_tensor(one)) for one in variables)


def _loss(model: keras.Model, x: Any, y: Any, flat: Sequence[Any], like: Any, weight: Any) -> Any:
    if y is None or not model.compiled:
        return tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in flat])
    return model.compute_loss(x, y, keras.tree.pack_sequence_as(like, list(flat)), weight)


def _whole(model: keras.Model, x: Any, y: Any, weight: Any) -> Callable[[], Any]:
    variables = [one.value for one in model.trainable_variables]

    @tf.function(autograph=False, jit_compile=bool(getattr(model, "jit_compile", False)))
    def step(x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = _loss(model, x, y, keras.tree.flatten(predicted), predicted, weight)
        return loss, [one for one in tape.gradient(loss, variables) if one is not None]

    return lambda: step(x, y, weight)


def _update(model: keras.Model, call_seconds: float, clock: Callable[[], float]) -> tuple[float, int]:
    """Return the seconds of an optimizer's update of all weights, and the bytes of its slots."""
    given = getattr(model, "optimizer", None)
    if given is None or not model.trainable_variables:
        return 0.0, 0
    strategy = model.distribute_strategy
    with strategy.scope():
        optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(given))
        optimizer.build(model.trainable_variables)
    gradients = [tf.zeros(one.shape, one.dtype) for one in model.trainable_variables]

    @tf.function(autograph=False)
    def update(gradients: Any) -> None:
        strategy.run(lambda given: optimizer.apply(given, model.trainable_variables), args=(gradients,))

    seconds = statistics.median(_series(lambda: update(gradients), 2 * _FEWEST, clock))
    slots = [one for one in optimizer.variables if len(one.shape)]
    return max(seconds - call_seconds, 0.0), _bytes_of(slots)


def _adding_seconds(gradients: Sequence[Any], clock: Callable[[], float]) -> float:
    """Return the seconds of adding gradients to others, without rows of tables, which are not added."""
    dense = [one for one in gradients if isinstance(one, tf.Tensor)]
    if not dense:
        return 0.0
    add = tf.function(lambda sums: [total + one for total, one in zip(sums, dense, strict=True)], autograph=False)
    sums = [tf.zeros_like(one) for one in dense]
    return statistics.median(_series(lambda: add(sums), 2 * _FEWEST, clock))


def _smallest_call() -> Callable[[], Any]:
    """Return a compiled function that computes next to nothing: its time is the overhead of a call."""
    function = tf.function(lambda one: one + 1.0, autograph=False)
    one = tf.constant(1.0)
    return lambda: function(one)


def _seconds(function: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    function()
    tf.test.experimental.sync_devices()
    return clock() - began


def _series(function: Callable[[], Any], count: int, clock: Callable[[], float]) -> list[float]:
    """Return the seconds of each of several calls in a row, without an additional first call."""
    return [_seconds(function, clock) for _ in range(count + 1)][1:]


def _merged(of_sizes: Sequence[LayerProfile]) -> LayerProfile:
    """Merge a layer's times of all batch sizes. The bytes of an example come from the largest size."""
    return dataclasses.replace(
        of_sizes[-1],
        forward_seconds=tuple(one.forward_seconds[0] for one in of_sizes),
        backward_seconds=tuple(one.backward_seconds[0] for one in of_sizes),
    )


def _divides(layer: Any, calls: Sequence[graphs.Call]) -> int:
    """Return the number that the number of parts must divide for a layer to be cut; 0 if it cannot be cut."""
    if sum(call.operation is layer for call in calls) > 1:
        return 0
    kind = type(layer)
    if kind is keras.layers.Dense:
        return int(layer.units)
    if kind in (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D):
        return int(layer.filters) if layer.groups == 1 and layer.padding != "causal" else 0
    if kind is keras.layers.MultiHeadAttention:
        return int(layer.num_heads)
    return int(layer.input_dim) if kind is keras.layers.Embedding else 0


def _joins(calls: Sequence[graphs.Call], place: int) -> bool:
    """Return whether a dense layer takes the result of the dense layer before it, so that it may stay in parts."""
    if not place:
        return False
    before, one = calls[place - 1].operation, calls[place].operation
    is_dense = type(before) is keras.layers.Dense and type(one) is keras.layers.Dense
    made = {id(tensor) for tensor in calls[place - 1].makes}
    takers = [number for number, call in enumerate(calls) if made.intersection(map(id, call.takes))]
    if not is_dense or takers != [place] or before.activity_regularizer is not None:
        return False
    return chains.is_elementwise(before.activation)
