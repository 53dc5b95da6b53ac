"""The updates of one optimizer with sharded slots: each worker updates its parts, and all get the new weights."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras import sharded_optimizer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.whole_variable import let_operate
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import norms, reducer
from tfdist.gradients.sharding import shard_exchange, slot_saving
from tfdist.gradients.sharding.variable_parts import Everywhere, Owned, Part, Stretch, balanced

_OPERATORS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__neg__", "__abs__", "__getitem__"),
)


class VariablePart:
    """A stand-in for a Keras variable while an optimizer builds slots or updates elements; it has the shape of a part.

    Reading it gives the part. It keeps an assigned value as a tensor, so the part takes no memory between two steps. It
    can be assigned in a condition only if its value is used up there.
    """

    def __init__(
        self, variable: Any, shape: tuple[int, ...], read: Callable[[], tf.Tensor], *, name: str, unique_id: str
    ) -> None:
        self.whole = variable
        self.shape = tuple(shape)
        self.dtype = tf.as_dtype(variable.dtype)
        self.path = variable.path
        self.name = name
        self.trainable = True
        self._unique_id = unique_id
        self._read = read
        self._value: tf.Tensor | None = None

    def value(self) -> tf.Tensor:
        return self._read() if self._value is None else self._value

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        del name
        value = self.value()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    def assign(self, value: Any) -> None:
        self._value = tf.ensure_shape(tf.convert_to_tensor(value, self.dtype), self.shape)

    def assign_add(self, value: Any) -> None:
        self.assign(self.value() + value)

    def assign_sub(self, value: Any) -> None:
        self.assign(self.value() - value)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_update(self.value(), rows.indices[:, tf.newaxis], rows.values))

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_add(self.value(), rows.indices[:, tf.newaxis], rows.values))

    def scatter_sub(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_sub(self.value(), rows.indices[:, tf.newaxis], rows.values))


let_operate(VariablePart, _OPERATORS, VariablePart.value)


def require_update_step_alone(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise if an optimizer, which is given parts of gradients, may look at several of them together."""
    sharded_optimizer.require_update_step_alone(
        optimizer,
        because="a worker of sharded data parallelism has parts of them",
        instead="MultiWorkerMirroredStrategy without shard_optimizer",
    )


class Updates:
    """The parts of an optimizer's variables and their updates, as `compat.keras.sharded_optimizer` needs them.

    If the optimizer updates each element by itself, each variable is divided evenly by elements. Other optimizers use
    whole variables (norms of layers, rows and columns), so one worker updates each whole variable, balanced by size.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, traced: TracedCollective, workers: Workers | None = None
    ) -> None:
        self._optimizer = optimizer
        self._traced = traced
        self._workers = workers
        self._has_agreed = False
        self._parts: dict[str, Part] = {}
        self._variables: dict[str, Any] = {}

    @property
    def divides(self) -> bool:
        """Whether variables are divided by elements."""
        return keras_optimizer.updates_elements(self._optimizer)

    def part_of(self, variable: Any) -> Part | None:
        """Return this worker's part of a variable; None if the optimizer does not know the variable."""
        return self._parts.get(sharded_optimizer.key_of(self._optimizer, variable))

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        return self._traced.all_reduce([vector], ["numbers of all gradients"])[0]

    # What Keras' optimizer asks for

    def stand_ins(self, variables: Sequence[Any]) -> list[Any]:
        """Divide the variables for which the optimizer is built, and return stand-ins from which to make slots."""
        require_update_step_alone(self._optimizer)
        shapes = [tuple(variable.shape) for variable in variables]
        rank, size = self._traced.rank, self._traced.size
        parts: list[Part] = (
            [Stretch(shape, rank, size) for shape in shapes] if self.divides else [*balanced(shapes, rank, size)]
        )
        for place, variable in enumerate(variables):
            if reducer.is_overwritten(variable):
                parts[place] = Everywhere(shapes[place])
        keys = [sharded_optimizer.key_of(self._optimizer, variable) for variable in variables]
        self._parts = dict(zip(keys, parts, strict=True))
        self._variables = dict(zip(keys, variables, strict=True))
        made = zip(variables, parts, strict=True)
        return [one if isinstance(part, Everywhere) else self._stand_in(one, part, one.name) for one, part in made]

    def made(self, slot: Any, stand_in: Any) -> None:
        """Note the part to which a slot belongs."""
        variable = stand_in.whole if isinstance(stand_in, VariablePart) else stand_in
        part = self.part_of(variable)
        if part is not None:
            slot_saving.note_part(slot, part)

    def built(self) -> None:
        """Note variables that are neither slots nor numbers, such as the rows of Adafactor."""
        if self.divides:
            return
        for one in self._optimizer.variables:
            if len(one.shape) and slot_saving.part_of(one) is None:
                slot_saving.note_part(one, "owned")
        numbers = sharded_optimizer.numbers_of(self._optimizer)
        if numbers and sharded_optimizer.is_of_ones_own(self._optimizer):
            raise self._kept(f"the number {numbers[0].name!r}", numbers[0].name)
        sharded_optimizer.require_no_generator(
            self._optimizer,
            because="each worker updates variables of its own, and would draw for these alone",
            instead="MultiWorkerMirroredStrategy without shard_optimizer",
        )

    def _kept(self, what: str, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"the optimizer {type(self._optimizer).__name__!r} keeps {what}, and its variables are updated by several "
            "workers: nothing says which of them changes it. Keep it for each variable, with the variable's shape, or "
            "take MultiWorkerMirroredStrategy without shard_optimizer.",
            name=type(self._optimizer).__name__,
            received=name,
        )

    def _require_owned(self) -> None:
        """Raise if several workers have what a user's optimizer keeps beside its slots; each would change its own.

        What belongs to one variable is made from the variable's shape, which has no elements on other workers.
        """
        if self._has_agreed or self._workers is None or not sharded_optimizer.is_of_ones_own(self._optimizer):
            return
        self._has_agreed = True
        kept = [one for one in self._optimizer.variables if slot_saving.part_of(one) == "owned"]
        if not kept:
            return
        with tf.init_scope():
            here = self._workers.gather([int(math.prod(one.shape) > 0) for one in kept])
        for one, count in zip(kept, here.sum(axis=0).tolist(), strict=True):
            if count > 1:
                raise self._kept(f"{one.name!r} (shape {tuple(one.shape)}), which belongs to no variable", one.name)

    def clipped(self, grads: list[Any]) -> list[Any]:
        """Return the gradients of parts, clipped as the optimizer requires."""
        own = self._optimizer
        if own.clipnorm:
            return norms.clipped(grads, self.total, clipnorm=own.clipnorm)
        if not own.global_clipnorm:
            return keras_optimizer.own_clip(own, grads)
        # Keras' own clipping makes gradients dense, and so does this
        clipped = norms.clipped(grads, self.total, global_clipnorm=own.global_clipnorm)
        return [None if one is None else tf.convert_to_tensor(one) for one in clipped]

    def decay(self, variables: Sequence[Any]) -> None:
        """Decay this worker's whole variables; parts are decayed in their update."""
        if not self.divides:
            mine = [
                one for one in variables if _is_mine(self._known(one)) and sharded_variable.sharding_of(one) is None
            ]
            sharded_optimizer.decay_wholes(self._optimizer, mine)

    def update(self, pairs: Sequence[tuple[Any, Any]], learning_rate: Any) -> None:
        """Update the parts, and gather the new weights on all workers."""
        if not self.divides:
            self._require_owned()
        variables = [self._variables[sharded_optimizer.key_of(self._optimizer, one)] for _, one in pairs]
        parts = [self._known(variable) for variable in variables]
        for (grad, _), part, variable in zip(pairs, parts, variables, strict=True):
            self._require_part(grad, part, variable)
        # one after the other: all of them at once would take as much memory again
        if self.divides:
            moving = self.readable(variables)

            def new(i: int) -> Any:
                sharded_optimizer.decay(self._optimizer, moving[i])
                self._optimizer.update_step(pairs[i][0], moving[i], learning_rate)
                return moving[i].value()
        else:

            def new(i: int) -> Any:
                updated = self._updated if sharded_variable.sharding_of(variables[i]) is None else self._updated_apart
                return updated(pairs[i], parts[i], learning_rate)

        shard_exchange.assign_wholes(self._traced, variables, parts, new)

    def _updated(self, pair: tuple[Any, Any], part: Part, learning_rate: Any) -> Any:
        """Return this worker's part of the new value of a variable that is whole on each worker."""
        variable = self._variables[sharded_optimizer.key_of(self._optimizer, pair[1])]
        if _is_mine(part):
            sharded_optimizer.update_whole(self._optimizer, pair, learning_rate)
        return part.of(tf.convert_to_tensor(variable.value))

    def _updated_apart(self, pair: tuple[Any, Any], part: Part, learning_rate: Any) -> Any:
        """Return the part of a new value like `_updated`, for a variable in parts, which is gathered for its worker."""
        grad, one = pair
        with tf.control_dependencies([grad]):
            (whole,) = self.readable([self._variables[sharded_optimizer.key_of(self._optimizer, one)]])
            whole.assign(whole.value())  # gathered once, by all
        if _is_mine(part):
            sharded_optimizer.decay(self._optimizer, whole)
            self._optimizer.update_step(grad, whole, learning_rate)
        return whole.value()

    def readable(self, variables: Sequence[Any]) -> list[Any]:
        # Keras excludes variables from decay by the names of TensorFlow's variables
        return [self._stand_in(variable, self._known(variable), variable.value.name) for variable in variables]

    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        shard_exchange.assign_wholes(
            self._traced, variables, [self._known(one) for one in variables], values.__getitem__
        )

    # What is saved

    def sharded_state(self) -> list[ShardedState]:
        return slot_saving.states("the optimizer's slots", self._optimizer.variables)

    def swap_averages(self) -> None:
        """Exchange the weights and their moving averages; every worker must call this."""
        variables, averages = sharded_optimizer.averages(self._optimizer)
        new = [tf.convert_to_tensor(average.value) for average in averages]
        for average, part in zip(averages, self.readable(variables), strict=True):
            average.assign(part.value())
        self.assign(variables, new)

    def average_weights(self) -> None:
        variables, averages = sharded_optimizer.averages(self._optimizer)
        for average, part in zip(averages, self.readable(variables), strict=True):
            average.assign(part.value())

    def _stand_in(self, variable: Any, part: Part, name: str) -> VariablePart:
        key = sharded_optimizer.key_of(self._optimizer, variable)
        sharding = sharded_variable.sharding_of(variable)

        def read() -> Any:
            if sharding is None:
                return part.of(tf.convert_to_tensor(variable.value))
            mine = sharded_variable.part_of(variable).read_value()
            if isinstance(part, Stretch):
                return mine
            whole = sharding.gather(mine)
            with tf.control_dependencies([whole]):  # all gather it, also those that need nothing of it
                return tf.identity(part.of(whole))

        return VariablePart(variable, part.shape, read, name=name, unique_id=key)

    def _known(self, variable: Any) -> Part:
        part = self.part_of(variable)
        assert part is not None, "Keras has looked whether the variable is known"
        return part

    def _require_part(self, grad: Any, part: Part, variable: Any) -> None:
        if tuple(grad.shape) == part.shape or not grad.shape.is_fully_defined():
            return
        raise UnsupportedError(
            f"the optimizer {self._optimizer.name!r} has sharded slots, and is given the whole gradient of "
            f"{variable.path!r} outside of a step of model.fit. Put the loop's step into the train_step of a "
            "keras.Model and call fit, or take MultiWorkerMirroredStrategy without shard_optimizer.",
            name=self._optimizer.name,
            received=variable.path,
        )


def _is_mine(part: Part) -> bool:
    return not isinstance(part, Owned) or part.is_mine
