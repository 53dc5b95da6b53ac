"""What a worker computes of a part of a batch, and what the chief does with it.

A worker changes nothing: its function reads weights from parameter servers and returns gradients, which it leaves on
the servers of their variables, and a few small numbers (what metrics and layer states change by) for the chief. The
chief applies them in a second function in which the worker has no part. So a worker may die at any moment: either all
of its step is applied, once, or nothing.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import keras_model, keras_optimizer, keras_scope, tf_partitioned, tf_servers
from tfdist.errors import UnsupportedError
from tfdist.training import layers, loss_scale, losses, metrics, optimizers, reduction, step, transport
from tfdist.training.data import Layout

_untraced = tf.autograph.experimental.do_not_convert


class ReducesInTheMiddle(Exception):  # noqa: N818 - not an error: the step is then computed whole
    """A step asks for a sum over parts before its gradients are there."""


@dataclass(frozen=True)
class _Note:
    """A small result for the chief.

    Attributes:
        target: the Keras variable it changes, or the place of a number among the logs.
        mode: "add" (sum over parts, added to the variable), "average" (likewise, of shares that add up to one), "first"
            (the first part's, added), "set" (the first part's, assigned) or "log" (sum of shares).
        dtype: of the result.
        shape: of the result.
    """

    target: Any
    mode: str
    dtype: tf.DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """One call of an optimizer's `apply`: the variables, and what kind of gradient each has, in how many parts.

    Attributes:
        scale: the variable of the loss scale, of which the worker was given a value; None where there is none.
    """

    optimizer: Any
    variables: list[Any]
    kinds: list[transport.Kind | None]
    scale: Any


@dataclass(frozen=True)
class Result:
    """What a worker made of a part: small results as arrays, gradients as tensors on parameter servers.

    Attributes:
        scales: the loss scale under which the gradients of each call were computed, 1 without one.
    """

    notes: list[np.ndarray]
    gradients: list[tf.Tensor]
    rows: int
    scales: list[float]


class Computation:
    """The function that workers run on a part of a batch.

    Args:
        model: the model.
        strategy: in whose scope it was made.
        user_step: its `train_step` or `test_step`.
        layout: of the batches.
        training: whether it is the `train_step`.
        parts: into how many parts a batch is cut; 1 for whole batches.
        unseeded: Keras' generator for random numbers without a seed.
    Raises:
        ReducesInTheMiddle: a part cannot be computed without the others.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        user_step: Callable[[Any], Any],
        layout: Layout,
        *,
        training: bool,
        parts: int,
        unseeded: Any,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._user_step = user_step
        self._layout = layout
        self._training = training
        self._parts = parts
        self._unseeded = unseeded
        self._weighs_loss = training and not keras_model.has_own_train_step(model)
        self._inputs = _chief_variables(model, unseeded)
        self._places = {id(variable): place for place, (variable, _) in enumerate(self._inputs)}
        self.calls: list[_Call] = []
        self.notes: list[_Note] = []
        self.put_logs: Callable[[list[Any]], Any] | None = None
        self.logs_are_metrics = False
        if model.run_eagerly:
            self._run: Any = self._compute
        else:
            signature = [*_COUNTS, *self._input_specs(), *layout.part_signature(relaxed=layout.is_cut)]
            self._run = tf.function(_untraced(self._compute), input_signature=signature).get_concrete_function()

    def _input_specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec(variable.shape, tf_partitioned.value_of(variable).dtype) for variable, _ in self._inputs]

    def state(self) -> list[tf.Tensor]:
        """Return the present values of the variables that the chief holds, as the function's inputs."""
        values = []
        for variable, adds in self._inputs:
            value = tf_partitioned.value_of(variable)
            values.append(tf.zeros(value.shape, value.dtype) if adds else value.read_value())
        return values

    def __call__(
        self, device: str | None, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]
    ) -> Result:
        """Compute a part on a device, and return when gradients lie on their servers.

        Args:
            device: the worker's; None where the caller is.
            counts: index of the part, its examples, examples of all parts: int32 scalars.
            state: what `state` gave.
            leaves: the part's tensors.
        """
        with tf_servers.calls_on(device):
            packed, *gradients = self._run(*counts, *state, *leaves)
            # Waits until the function has ended, and its gradients are where they belong.
            data = packed.numpy().tobytes()
        places = [None if call.scale is None else self._places[id(call.scale)] for call in self.calls]
        scales = [1.0 if place is None else float(state[place]) for place in places]
        return Result(_unpacked(data, self.notes), list(gradients), int(counts[1]), scales)

    def _compute(self, index: tf.Tensor, rows: tf.Tensor, global_rows: tf.Tensor, *rest: Any) -> list[Any]:
        values, leaves = rest[: len(self._inputs)], rest[len(self._inputs) :]
        replica_step = _untraced(functools.partial(self._replica_step, index, rows, global_rows, values))
        return self._strategy.run(replica_step, args=(self._layout.part(leaves),))

    def _replica_step(self, index: Any, rows: Any, global_rows: Any, values: Any, data: Any) -> list[Any]:
        model = self._model
        keras_model.use_global_seed_generator(self._unseeded)
        layers.adapt(model, self._unseeded)
        metrics.adapt(model)
        adapt_embeddings(model)
        container = keras_model.compiled_losses(model)
        if container is not None:
            losses.adapt(container)
        before = [(variable, value) for (variable, _), value in zip(self._inputs, values, strict=True)]
        self.calls, self.notes = [], []
        gradients: list[Any] = []
        current = step.Step(rows=rows, global_rows=global_rows, weighs_loss=self._weighs_loss, index=index)
        exchange = self._none_to_ask if self._parts == 1 else _refuse
        scope = keras_scope.CapturedUpdates(before)
        with scope, current, reduction.exchanged(exchange), _collecting(self._collector(gradients)):
            logs = self._user_step(data)
            results = self._notes(scope, dict_of(before), logs, current)
        return [_packed(results), *gradients]

    @staticmethod
    def _none_to_ask(tensors: list[Any]) -> list[Any]:
        return tensors

    def _collector(self, gradients: list[Any]) -> Callable[..., None]:
        def collect(optimizer: Any, given: Any, variables: Any) -> None:
            wire_dtype = getattr(optimizer, "wire_dtype", None)
            values = optimizers.weighted(optimizer, list(given))
            values = [None if value is None else reduction.travelling(value, wire_dtype) for value in values]
            variables = list(variables) if variables is not None else keras_optimizer.known_variables(optimizer)
            kinds: list[transport.Kind | None] = []
            add_up = keras_optimizer.adds_rows(optimizer)
            in_parts = keras_optimizer.takes_gradients_as_they_come(optimizer)
            for value, variable in zip(values, variables, strict=True):
                pieces = [] if value is None else transport.pieces(value, variable, add_up=add_up, in_parts=in_parts)
                name = "rows" if isinstance(value, tf.IndexedSlices) else "whole"
                kinds.append((name, len(pieces)) if pieces else None)
                for piece, device in pieces:
                    gradients.extend(transport.left_on_server(piece, device))
            scale = loss_scale.variable_of(optimizer)
            self.calls.append(_Call(optimizer, variables, kinds, scale if id(scale) in self._places else None))

        return collect

    def _notes(self, scope: Any, before: dict[int, tf.Tensor], logs: Any, current: step.Step) -> list[tf.Tensor]:
        model = self._model
        counted = {id(variable): metric for metric in model.metrics for variable in metric.variables}
        touched = {metric.name for metric in model.metrics if not metric.variables}
        results: list[tf.Tensor] = []

        def note(target: Any, mode: str, value: tf.Tensor) -> None:
            self.notes.append(_Note(target, mode, value.dtype, tuple(value.shape.as_list())))
            results.append(value)

        for variable in scope.assigned:
            value = tf.convert_to_tensor(keras.StatelessScope.get_current_value(scope, variable))
            if id(variable) in counted:
                touched.add(counted[id(variable)].name)
                note(variable, "add" if variable.aggregation == "sum" else "set", value)
                continue
            own = tf_partitioned.value_of(variable)
            value = tf.cast(value, own.dtype)
            old = before.get(id(variable))
            old = tf.convert_to_tensor(own) if old is None else old
            if value.dtype.is_floating:
                # Averages over parts, as layers' moving statistics are; what the chief holds is equal on all parts.
                note(variable, "average", reduction.weighted(value - old, current.share))
            elif value.dtype.is_integer and not value.dtype.is_unsigned:
                note(variable, "first", value - old)
            else:  # seeds, and what is no number
                note(variable, "set", value)
        self.logs_are_metrics = metrics.are_metrics(model, logs, keras_model.metrics_result(model), touched)
        if not self.logs_are_metrics:
            scalars, self.put_logs = metrics.scalars(logs, keep_others=False)
            for place, value in enumerate(scalars):
                note(place, "log", reduction.weighted(value, current.share))
        return results


class Update:
    """What the chief does with the results of the parts of one step: apply gradients once, and count once.

    Args:
        model: the model.
        strategy: in whose scope it was made.
        computation: what the workers computed.
        corrects_rate: whether learning rates are multiplied by a factor.
        scales: whether gradients are multiplied by a factor, because parts are left out.
    """

    def __init__(
        self, model: keras.Model, strategy: Any, computation: Computation, *, corrects_rate: bool, scales: bool
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._computation = computation
        self._corrects_rate = corrects_rate
        self._scales = scales
        self._functions: dict[int, Any] = {}

    def function(self, results: Sequence[Result], *, rate_factor: float = 1.0, scale: float = 1.0) -> Callable[[], Any]:
        """Return a call that applies the parts of one step and returns the logs; it is traced here."""
        notes = [
            _over_parts(note, [r.notes[i] for r in results], scale) for i, note in enumerate(self._computation.notes)
        ]
        factors = [tf.constant(rate_factor, tf.float32), tf.constant(scale, tf.float32)]
        factors.append(tf.constant(sum(result.rows for result in results), tf.int32))
        factors.append(tf.constant(results[0].scales, tf.float32))  # parts of one step were given one state
        gradients = [gradient for result in results for gradient in result.gradients]
        if self._model.run_eagerly:
            return functools.partial(
                _consumed, functools.partial(self._update, len(results), *factors, *notes), results
            )
        if len(results) not in self._functions:
            traced = tf.function(_untraced(functools.partial(self._update, len(results))))
            specs = [tf.TensorSpec(factor.shape, factor.dtype) for factor in factors]
            specs += [tf.TensorSpec(note.shape, note.dtype) for note in self._computation.notes]
            specs += [transport.spec_of(tensor, kind) for tensor, kind in self._kinds(gradients)]
            self._functions[len(results)] = traced.get_concrete_function(*specs)
        function = self._functions[len(results)]
        call = functools.partial(function, *factors, *map(tf.convert_to_tensor, notes))
        return functools.partial(_consumed, call, results)

    def _kinds(self, gradients: list[tf.Tensor]) -> Iterator[tuple[tf.Tensor, str]]:
        kinds = [k for call in self._computation.calls for kind in call.kinds for k in transport.tensors_of(kind)]
        yield from zip(gradients, kinds * (len(gradients) // max(1, len(kinds))), strict=True)

    def _update(self, parts: int, *given: tf.Tensor) -> Any:
        factors, rest = given[:4], given[4:]
        count = len(self._computation.notes)
        return self._strategy.run(_untraced(self._apply), args=(parts, *factors, rest[:count], rest[count:]))

    def _apply(
        self,
        parts: int,
        rate_factor: tf.Tensor,
        scale: tf.Tensor,
        rows: tf.Tensor,
        loss_scales: tf.Tensor,
        notes: Any,
        gradients: Any,
    ) -> Any:
        each = len(gradients) // parts
        own = [list(gradients[part * each : (part + 1) * each]) for part in range(parts)]
        with _placed():
            for place, call in enumerate(self._computation.calls):
                values = [
                    transport.sum_of(kind, variable, own)
                    for kind, variable in zip(call.kinds, call.variables, strict=True)
                ]
                if self._scales:
                    values = _times(scale, values)
                if call.scale is not None:
                    # The scale may have changed since a worker was given it: the optimizer divides by the present one.
                    values = _times(tf.convert_to_tensor(call.scale) / loss_scales[place], values)
                factor = rate_factor if self._corrects_rate else None
                whole = step.Step(rows=rows, global_rows=rows)
                whole.weighted.add(id(call.optimizer))
                with keras_optimizer.rate_multiplied(call.optimizer, factor), whole:
                    type(call.optimizer).apply(call.optimizer, values, call.variables)
        logs: list[tf.Tensor] = []
        for note, value in zip(self._computation.notes, notes, strict=True):
            if note.mode == "log":
                logs.append(value)
                continue
            variable = tf_partitioned.value_of(note.target)
            with tf.device(variable.device):
                variable.assign(value) if note.mode == "set" else variable.assign_add(value)
        if self._computation.put_logs is not None:
            return self._computation.put_logs(logs)
        return keras_model.metrics_result(self._model)


class Prediction:
    """The function by which workers predict a part.

    Args:
        model: the model.
        strategy: in whose scope it was made.
        layout: of the batches.
        unseeded: Keras' generator for random numbers without a seed.
    """

    def __init__(self, model: keras.Model, strategy: Any, layout: Layout, unseeded: Any) -> None:
        self._model, self._strategy, self._layout, self._unseeded = model, strategy, layout, unseeded
        self._inputs = _chief_variables(model, unseeded)
        self._structure: Any = None
        if model.run_eagerly:
            self._run: Any = self._compute
        else:
            specs = [tf.TensorSpec(v.shape, tf_partitioned.value_of(v).dtype) for v, _ in self._inputs]
            signature = [*_COUNTS, *specs, *layout.part_signature(relaxed=True)]
            self._run = tf.function(_untraced(self._compute), input_signature=signature).get_concrete_function()

    def state(self) -> list[tf.Tensor]:
        """Return the present values of the variables that the chief holds, as the function's inputs."""
        return [tf_partitioned.value_of(variable).read_value() for variable, _ in self._inputs]

    def __call__(self, device: str | None, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Return the model's outputs for a part, as a nest of arrays."""
        with tf_servers.calls_on(device):
            arrays = [tensor.numpy() for tensor in self._run(*counts, *state, *leaves)]
        arrays = [tf.constant(array) for array in arrays]
        return tf.nest.pack_sequence_as(self._structure, arrays, expand_composites=True)

    def _compute(self, index: tf.Tensor, rows: tf.Tensor, global_rows: tf.Tensor, *rest: Any) -> list[Any]:
        values, leaves = rest[: len(self._inputs)], rest[len(self._inputs) :]
        replica_step = _untraced(functools.partial(self._replica_step, index, rows, global_rows, values))
        return self._strategy.run(replica_step, args=(self._layout.part(leaves),))

    def _replica_step(self, index: Any, rows: Any, global_rows: Any, values: Any, data: Any) -> list[Any]:
        keras_model.use_global_seed_generator(self._unseeded)
        layers.adapt(self._model, self._unseeded)
        adapt_embeddings(self._model)
        scope = keras_scope.CapturedUpdates([(v, value) for (v, _), value in zip(self._inputs, values, strict=True)])
        current = step.Step(rows=rows, global_rows=global_rows, index=index)
        with scope, current, reduction.exchanged(Computation._none_to_ask):
            outputs = self._model.predict_step(data)
        self._structure = tf.nest.map_structure(_skeleton, outputs, expand_composites=False)
        return [tf.identity(leaf) for leaf in tf.nest.flatten(outputs, expand_composites=True)]


_COUNTS = [tf.TensorSpec([], tf.int32)] * 3


def adapt_embeddings(model: keras.Model) -> None:
    """Let embeddings look up rows on the servers, of which only those that are asked for travel."""
    for layer in keras_model.layers(model):
        if isinstance(layer, keras.layers.Embedding):
            tf_partitioned.override_call(layer, functools.partial(_look_up, layer))


def adapt_optimizer(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Let one optimizer object hand its gradients to the chief where a worker's function is traced.

    Raises:
        UnsupportedError: it needs the gradient of each worker.
    """
    if getattr(optimizer, "reduction", "mean") == "adasum":
        raise UnsupportedError(
            'reduction is "adasum" under ParameterServerStrategy, whose servers add up what comes from workers. Pass '
            'reduction="mean", or train under another strategy.'
        )
    optimizers.adapt(optimizer, strategy, _apply_or_collect)


def dict_of(pairs: list[tuple[Any, tf.Tensor]]) -> dict[int, tf.Tensor]:
    """Return the values by their variables' identity."""
    return {id(variable): value for variable, value in pairs}


_collectors: list[Callable[..., None]] = []


@contextlib.contextmanager
def _collecting(collect: Callable[..., None]) -> Iterator[None]:
    _collectors.append(collect)
    try:
        yield
    finally:
        _collectors.pop()


def _apply_or_collect(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    if _collectors:
        _collectors[-1](optimizer, grads, trainable_variables)
    else:
        type(optimizer).apply(optimizer, grads, trainable_variables)


def _look_up(layer: keras.layers.Embedding, inputs: Any) -> Any:
    table = tf_partitioned.embeddings_of(layer)
    if table is None or not isinstance(inputs, tf.Tensor) or not (inputs.dtype.is_integer or inputs.dtype.is_floating):
        return tf_partitioned.own_call(layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    ids = tf.where(ids < 0, ids + tf.cast(table.shape[0], ids.dtype), ids)
    return tf.cast(tf_partitioned.lookup(table, ids), layer.compute_dtype)


def _chief_variables(model: keras.Model, unseeded: Any) -> list[tuple[Any, bool]]:
    """Return the Keras variables that the chief holds, and whether each counts from zero in every part."""
    counting = {id(v): v for metric in model.metrics for v in metric.variables}
    others = [*keras_model.persistent_variables(model), unseeded.state]
    known = {id(v): v for v in [*counting.values(), *others] if tf_partitioned.value_of(v).device == tf_servers.CHIEF}
    return [(v, i in counting and v.aggregation == "sum") for i, v in known.items()]


def _refuse(tensors: list[Any]) -> list[Any]:
    raise ReducesInTheMiddle


def _consumed(call: Callable[..., Any], results: Sequence[Result]) -> Any:
    """Call with all gradients, and let go of them here: TensorFlow tells the worker, which may not answer any more.

    The thread in which they are let go of must not be one that waits for what it has asked of TensorFlow.
    """
    try:
        return call(*(gradient for result in results for gradient in result.gradients))
    finally:
        for result in results:
            result.gradients.clear()


def _times(factor: tf.Tensor, gradients: list[Any]) -> list[Any]:
    return [reduction.mapped(lambda value: value * tf.cast(factor, value.dtype), gradient) for gradient in gradients]


def _placed() -> Any:
    return contextlib.nullcontext() if tf.executing_eagerly() else tf_servers.where_the_data_is()


def _over_parts(note: _Note, values: list[np.ndarray], scale: float) -> np.ndarray:
    if note.mode in ("set", "first"):
        return values[0]
    total = values[0] if len(values) == 1 else np.sum(values, axis=0, dtype=values[0].dtype)
    return total * np.asarray(scale, total.dtype) if note.mode in ("average", "log") and scale != 1.0 else total


def _packed(values: list[tf.Tensor]) -> tf.Tensor:
    """Return the bytes of all values in one tensor, which is fetched in one go."""
    flat = []
    for value in values:
        value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
        flat.append(tf.reshape(value if value.dtype == tf.uint8 else tf.bitcast(value, tf.uint8), [-1]))
    return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.uint8)


def _unpacked(data: bytes, notes: Sequence[_Note]) -> list[np.ndarray]:
    arrays, begin = [], 0
    for note in notes:
        dtype = np.dtype(note.dtype.as_numpy_dtype)
        end = begin + int(np.prod(note.shape, dtype=int)) * dtype.itemsize
        arrays.append(np.frombuffer(data[begin:end], dtype).reshape(note.shape))
        begin = end
    return arrays


def _skeleton(value: Any) -> Any:
    return tf.type_spec_from_value(value)
