"""The variables that a worker trains independently: weights, states and slots, accessed outside of its strategy.

A worker's replicas have equal copies, so the first one is read and all are written. Code here runs in a thread of its
own. No strategy is in scope there, so variables are plain ones, and work under way does not delay training.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import keras
import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.gradients.outer import fragments

T = TypeVar("T")
_ONE_THREAD = "SINGLE_THREADED_EXECUTOR"


class Outside(Generic[T]):
    """A function that runs in a thread of its own, outside of every strategy."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tfdist-meeting", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks for the result
            self._error = error

    def result(self) -> T:
        """Wait, and return the function's result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        found: T = self._result
        return found


def outside(function: Callable[[], T]) -> T:
    return Outside(function).result()


def in_this_thread() -> contextlib.AbstractContextManager[None]:
    """Return a context in which the calling thread runs all operations of a graph, one after the other.

    Operations of steps may hold all of TensorFlow's threads; those of an exchange would wait for a free one again and
    again, and other workers with them. Operations on several devices wait for each other, so they cannot share one.
    """
    configured = (tf.config.get_logical_device_configuration(one) or [one] for one in tf.config.get_visible_devices())
    if sum(map(len, configured)) > 1:  # logical devices would include those of other workers
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[None]", tf.experimental.function_executor_type(_ONE_THREAD))


def has_mean(variable: keras.Variable) -> bool:
    return has_fractions(tf.as_dtype(variable.dtype))


def common_dtype(variables: Sequence[keras.Variable]) -> tf.DType:
    """Return the dtype in which the numbers of all these variables travel together: float32, or what they need."""
    dtypes = {tf.as_dtype(one.dtype) for one in variables}
    is_double = any(dtype.real_dtype == tf.float64 for dtype in dtypes)
    if any(dtype.is_complex for dtype in dtypes):
        return tf.complex128 if is_double else tf.complex64
    return tf.float64 if is_double else tf.float32


def bytes_of(variables: Sequence[keras.Variable]) -> int:
    return sum(int(tf.TensorShape(one.shape).num_elements()) * tf.as_dtype(one.dtype).size for one in variables)


def weights_of(model: keras.Model) -> list[keras.Variable]:
    return [one for one in model.trainable_variables if has_mean(one)]


def states_of(model: keras.Model) -> list[keras.Variable]:
    """Return the states that layers change in a step and of which a mean makes sense, such as moving averages."""
    trained = {id(one) for one in model.trainable_variables}
    return [one for one in keras_variables.states(model) if has_mean(one) and id(one) not in trained]


def averages_of(model: keras.Model) -> list[keras.Variable]:
    """Return the moving averages of weights that optimizers keep (`use_ema`), once they exist."""
    every = [one for outer in keras_trainer.optimizers(model) for one in keras_optimizer.chain(outer)]
    found = [average for one in every for average in keras_optimizer.averages_of(one)]
    return list({id(average): average for average in found}.values())


def slots_of(model: keras.Model) -> list[keras.Variable]:
    """Return the optimizers' variables that change in a step: moments, scales, counts; none with a rule of its own."""
    optimizers = {id(one): one for outer in keras_trainer.optimizers(model) for one in keras_optimizer.chain(outer)}
    rates = [rate for one in optimizers.values() for rate in keras_optimizer.learning_rate_variables(one)]
    declaring = [one for one in optimizers.values() if callable(getattr(one, "sharded_state", None))]
    declared = [variable for one in declaring for state in one.sharded_state() for variable in state.variables]
    taken = {id(variable) for variable in [*rates, *declared]}
    slots = {id(variable): variable for one in optimizers.values() for variable in one.variables}
    return [variable for number, variable in slots.items() if number not in taken]


def read(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Return the values on this worker; they stay the same when the variables change."""
    return [tf_strategies.primary(keras_variables.value_of(one)).read_value() for one in variables]


def write(variables: Sequence[keras.Variable], values: Sequence[tf.Tensor]) -> None:
    """Assign values to variables, in all copies on this worker's replicas."""
    for variable, value in zip(variables, values, strict=True):
        for copy in tf_strategies.copies(keras_variables.value_of(variable)):
            copy.assign(_cast(value, copy.dtype))


def read_part(variable: keras.Variable, begin: int, end: int, dtype: tf.DType) -> tf.Tensor:
    """Return the numbers from `begin` up to `end` of the flattened variable, in this dtype.

    Drop them before the next step: while they exist, an update of the variable may first copy it.
    """
    flat = tf.reshape(read([variable])[0], [-1])
    return tf.cast(flat if (begin, end) == (0, flat.shape[0]) else flat[begin:end], dtype)


def write_part(variable: keras.Variable, begin: int, values: tf.Tensor) -> None:
    """Assign numbers from `begin` on of the flattened variable, in all copies; the others are not touched."""
    shape = [int(one) for one in variable.shape]
    boxes = fragments.boxes(shape, begin, begin + int(values.shape[0]))
    parts = tf.split(values, [math.prod(one.stop - one.start for one in box) for box in boxes])
    for copy in tf_strategies.copies(keras_variables.value_of(variable)):
        new = [
            _cast(tf.reshape(part, [one.stop - one.start for one in box]), copy.dtype)
            for part, box in zip(parts, boxes, strict=True)
        ]
        if shape:
            _assign_boxes(copy, boxes, new)
        else:
            copy.assign(new[0])


def _cast(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return numbers in a dtype; real ones may have travelled beside complex ones."""
    return tf.cast(tf.math.real(value) if value.dtype.is_complex and not dtype.is_complex else value, dtype)


def _assign_boxes(variable: tf.Variable, boxes: Sequence[tuple[slice, ...]], values: Sequence[tf.Tensor]) -> None:
    """Assign boxes of a variable where they lie: `variable[box].assign` reads it first, and then has to copy it.

    Values that somebody has read stay as they were, because the ops copy the variable if there are such. They also let
    later reads copy, which each step would then do with its weights; that is turned off again.
    """
    for box, value in zip(boxes, values, strict=True):
        begins, ends = [one.start for one in box], [one.stop for one in box]
        if len(box) > 1 and value.shape[1:] == variable.shape[1:]:  # whole rows, thirty times as fast
            rows = tf.range(begins[0], ends[0])
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=value)
            continue
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=begins, end=ends, strides=[1] * len(box), value=value
        )
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
