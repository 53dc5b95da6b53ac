"""The chief's update, which applies the results of a step's parts on the servers and on itself, once."""

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.errors import DeadlineError
from tfdist.gradients.reduction import compressed_reducer, replica_sums
from tfdist.training.parameter_servers import transport
from tfdist.training.parameter_servers.gradient_push import Note
from tfdist.training.parameter_servers.remote_part import Computation, Result
from tfdist.training.replica import current_step, replica_optimizers


class BoundedCalls:
    """A runner of calls to parameter servers, which may never return: in a separate thread, with a deadline.

    Each call has an answer of its own. One that comes after its caller was interrupted is nobody else's.
    """

    def __init__(self, timeout_seconds: float, require_servers: Callable[[], None]) -> None:
        self._timeout_seconds = timeout_seconds
        self._require_servers = require_servers
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], futures.Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, call: Callable[[], Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tfdist-apply", daemon=True)
            self._thread.start()
        answer: futures.Future[Any] = futures.Future()
        self._calls.put((call, answer))
        if not futures.wait([answer], self._timeout_seconds).done:
            self._require_servers()
            raise DeadlineError(
                f"the parameter servers have not applied a step within {self._timeout_seconds:g} s. One of them hangs "
                "or is stopped: end it, and start the job again, which continues from its last backup."
            )
        error = answer.exception()
        if error is not None:
            if tf_servers.is_loss(error):
                self._require_servers()
            raise error
        return answer.result()

    def _run(self) -> None:
        tf_servers.own_executor()
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                answer.set_exception(error)
            del call, answer


_untraced = tf.autograph.experimental.do_not_convert


class Update:
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
        with contextlib.nullcontext() if tf.executing_eagerly() else tf_servers.where_the_data_is():
            for place, call in enumerate(self._computation.calls):
                codec = compressed_reducer.codec_of(call.optimizer)
                values = [
                    transport.sum_of(kind, variable, own, codec)
                    for kind, variable in zip(call.kinds, call.variables, strict=True)
                ]
                if self._scales:
                    values = _times(scale, values)
                if call.scale is not None:
                    # The scale may have changed since a worker was given it: the optimizer divides by the present one.
                    values = _times(tf.convert_to_tensor(call.scale) / loss_scales[place], values)
                factor = rate_factor if self._corrects_rate else None
                whole = current_step.Step(rows=rows, global_rows=rows, all_reduce=list)
                whole.weighted.add(id(call.optimizer))
                with keras_optimizer.rate_multiplied(call.optimizer, factor), whole:
                    replica_optimizers.own_apply(call.optimizer, values, call.variables, in_pairs=call.in_pairs)
        logs: list[tf.Tensor] = []
        for note, value in zip(self._computation.notes, notes, strict=True):
            if note.mode == "log":
                logs.append(value)
            if note.mode in ("log", "scale", "passes"):
                continue
            variable = keras_variables.value_of(note.target)
            with tf.device(variable.device):
                variable.assign(value) if note.mode == "set" else variable.assign_add(value)
        if self._computation.put_logs is not None:
            return self._computation.put_logs(logs)
        return keras_trainer.metrics_result(self._model)


def _consumed(call: Callable[..., Any], results: Sequence[Result]) -> Any:
    """Call with all gradients, and release them here: TensorFlow notifies the worker, which may not answer any more.

    The thread that releases them must not be one that waits for TensorFlow.
    """
    try:
        return call(*(gradient for result in results for gradient in result.gradients))
    finally:
        for result in results:
            result.gradients.clear()


def _times(factor: tf.Tensor, gradients: list[Any]) -> list[Any]:
    return [replica_sums.mapped(lambda value: value * tf.cast(factor, value.dtype), gradient) for gradient in gradients]


def _over_parts(note: Note, values: list[np.ndarray], scale: float) -> np.ndarray:
    if note.mode in ("set", "first", "scale", "passes"):
        return values[0]
    total = values[0] if len(values) == 1 else np.sum(values, axis=0, dtype=values[0].dtype)
    return total * np.asarray(scale, total.dtype) if note.mode in ("average", "log") and scale != 1.0 else total
