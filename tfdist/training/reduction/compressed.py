"""The reducer that compresses: which gradients travel as a codec makes them, and what each replica remembers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.sharding import ShardedState
from tfdist.collectives import buckets
from tfdist.compat.tensorflow import strategies as tf_strategies
from tfdist.compression import random
from tfdist.compression.codec import Codec, reduced_bytes
from tfdist.compression.exchange import carried
from tfdist.compression.messages import Context, State
from tfdist.training.reduction import replica_sums
from tfdist.training.reduction.reducer import Gradient, GradientReducer

# Of how many members a gradient is judged: what is remembered must not depend on how many there are.
_MEMBERS = 2
_COUNTERS = "the counters of compression"


class _Unit:
    """Gradients that are compressed as one tensor.

    Args:
        gradients: by their index among those of the update.
        values: dense, float32 or float64, of one dtype.
    """

    def __init__(self, gradients: dict[int, Gradient], values: dict[int, tf.Tensor]) -> None:
        self.gradients = gradients
        self.indices = list(gradients)
        self.places = [one.place for one in gradients.values()]
        self.label = "compressed " + " and ".join(one.path for one in gradients.values())
        self.turn = max(one.turn for one in gradients.values())
        self._shapes = [value.shape for value in values.values()]
        self.value = self.joined(list(values.values()))

    def joined(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return one tensor of a value for each gradient."""
        return values[0] if len(values) == 1 else tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)

    def apart(self, value: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return the value for each gradient, by its index."""
        if len(self.indices) == 1:
            return {self.indices[0]: value}
        parts = tf.split(value, [shape.num_elements() for shape in self._shapes])
        shaped = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return dict(zip(self.indices, shaped, strict=True))

    def check(self) -> Gradient:
        """Return zero, or no number where any of it is not finite: codecs may make finite numbers of those."""
        finite = tf.reduce_all(tf.math.is_finite(self.value))
        return Gradient(tf.where(finite, 0.0, float("nan")), f"whether {self.label} is finite", turn=self.turn)


class Compressed:
    """Compresses gradients of two axes or more that it makes small enough; hands the others on as they are.

    What each replica remembers is a variable of its own for each gradient. Rows of tables (`tf.IndexedSlices`) are
    handed on: they are few already. A gradient that is not finite on one replica is not finite on any.

    Args:
        codec: compresses.
        seed: of random numbers; the same on all replicas.
        learning_rate: returns that of this update, float32 scalar.
        inner: brings the replicas together.
    """

    def __init__(
        self, codec: Codec, inner: GradientReducer, *, seed: int = 0, learning_rate: Callable[[], Any] | None = None
    ) -> None:
        self._codec = codec
        self._inner = inner
        self._seed = seed
        self._learning_rate = learning_rate if codec.needs_learning_rate else None
        self._states: dict[int, list[tuple[State, keras.Variable]]] = {}
        self._counters: list[keras.Variable] = []

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Make and return what is remembered of each gradient, and how often it was compressed among how many."""
        for place, spec in enumerate(specs):
            if is_compressed(self._codec, spec):
                self._states[place] = [
                    (state, _variable(f"{spec.name}_compression_{number}", state.initial))
                    for number, state in enumerate(self._codec.init(tf.TensorSpec(spec.shape, _wide(spec.dtype))))
                ]
        #: for each gradient: updates, and replicas in the last one, none in the first
        self._updates = _variable("compression_updates", tf.zeros([len(specs)], tf.int32))
        self._members = _variable("compression_members", tf.zeros([len(specs)], tf.int32))
        self._counters = [self._updates, self._members]
        if self._learning_rate is not None:
            self._last_rate = _variable("compression_learning_rate", tf.zeros([], tf.float32))
            self._counters.append(self._last_rate)
        states = [variable for own in self._states.values() for _, variable in own]
        return [*states, *self._counters, *self._inner.variables(specs)]

    def sharded_state(self) -> list[ShardedState]:
        """Return what is remembered, and that the next update of other replicas sends it all."""
        kinds: dict[tuple[str, Any], list[keras.Variable]] = {}
        for state in self._codec.init(tf.TensorSpec([2, 2], tf.float32)):
            kinds[state.name, state.rule] = []
        for states in self._states.values():
            for state, variable in states:
                kinds[state.name, state.rule].append(variable)
        own = [ShardedState(name, variables, rule=rule) for (name, rule), variables in kinds.items()]
        return [*own, ShardedState(_COUNTERS, self._counters, rule="keep"), *self._inner.sharded_state()]

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sums over replicas, or what the codec has made of them."""
        units = self._units(gradients)
        compressed = {index for unit in units for index in unit.indices}
        others = [index for index in range(len(gradients)) if index not in compressed]
        checks = [unit.check() for unit in units]
        arrived = self._inner.reduce([*(gradients[index] for index in others), *checks])
        values = {index: one.value for index, one in zip(others, arrived, strict=False)}
        totals = self._exchanged(units) if units else []
        for unit, total, check in zip(units, totals, arrived[len(others) :], strict=True):
            values.update(unit.apart(total + tf.cast(check.value, total.dtype)))
        return [replace(one, value=_in_dtype_of(one, values[index])) for index, one in enumerate(gradients)]

    def _units(self, gradients: list[Gradient]) -> list[_Unit]:
        """Return what is compressed, as it is compressed: what is made first comes first."""
        dense = {
            index: tf.cast(gradients[index].value, _wide(gradients[index].value.dtype))
            for index in sorted(range(len(gradients)), key=lambda index: gradients[index].turn)
            if gradients[index].place in self._states and not isinstance(gradients[index].value, tf.IndexedSlices)
        }
        size = tf_strategies.bucket_bytes_here() or buckets.DEFAULT_BYTES
        groups = [[index] for index in dense] if self._codec.by_tensor else buckets.in_buckets(dense, size)
        return [_Unit({i: gradients[i] for i in group}, {i: dense[i] for i in group}) for group in groups]

    def _exchanged(self, units: list[_Unit]) -> list[tf.Tensor]:
        """Return the totals of units; remember what the next update needs."""
        places = [one.place for unit in units for one in unit.gradients.values()]
        size = tf_strategies.replicas_here()
        updates, members = (tf.gather(tf.convert_to_tensor(one), places) for one in (self._updates, self._members))
        contexts = self._contexts(units, size)
        states = [self._state(unit) for unit in units]

        def compressed() -> list[Any]:
            exchanges = [
                self._codec.exchange(unit.value, state, context)
                for unit, state, context in zip(units, states, contexts, strict=True)
            ]
            ends = carried(exchanges, [unit.label for unit in units], _Carrier(self._inner, units))
            return [[end.total for end in ends], [list(end.state) for end in ends]]

        def whole() -> list[Any]:
            sent = [
                self._codec.whole(unit.value, state, context)
                for unit, state, context in zip(units, states, contexts, strict=True)
            ]
            labels = [f"{unit.label}, whole" for unit in units]
            totals = _Carrier(self._inner, units).all_reduce([tensor for tensor, _ in sent], labels)
            return [totals, [list(state) for _, state in sent]]

        if self._codec.start_after or self._codec.has_memory:
            others = tf.reduce_any((members != 0) & (members != size))
            totals, after = tf.cond(others | tf.reduce_any(updates < self._codec.start_after), whole, compressed)
        else:
            totals, after = compressed()
        for unit, state in zip(units, after, strict=True):
            self._remember(unit, state)
        at = tf.constant(places)[:, tf.newaxis]
        self._updates.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(self._updates), at, tf.ones_like(updates)))
        self._members.assign(
            tf.tensor_scatter_nd_update(tf.convert_to_tensor(self._members), at, tf.fill([len(places)], size))
        )
        return list(totals)

    def _contexts(self, units: list[_Unit], size: int) -> list[Context]:
        updates = tf.convert_to_tensor(self._updates)
        slower = None
        if self._learning_rate is not None:
            rate, last = tf.cast(self._learning_rate(), tf.float32), tf.convert_to_tensor(self._last_rate)
            slower = tf.where(last > 0, tf.math.divide_no_nan(last, rate), 1.0)
            self._last_rate.assign(rate)
        rank = tf_strategies.replica_index()
        return [
            random.context(
                rank, size, step=updates[unit.places[0]], seed=self._seed, place=unit.places[0], slower=slower
            )
            for unit in units
        ]

    def _state(self, unit: _Unit) -> tuple[tf.Tensor, ...]:
        own = [[tf.convert_to_tensor(variable) for _, variable in self._states[place]] for place in unit.places]
        return tuple(unit.joined(values) for values in zip(*own, strict=True))

    def _remember(self, unit: _Unit, state: Sequence[tf.Tensor]) -> None:
        for number, value in enumerate(state):
            for index, part in unit.apart(value).items():
                self._states[unit.gradients[index].place][number][1].assign(part)


class _Carrier:
    """What carries the tensors of a replica's exchanges.

    Args:
        inner: adds up over replicas.
        units: what the tensors are of, in the order of the exchanges.
    """

    def __init__(self, inner: GradientReducer, units: Sequence[_Unit]) -> None:
        self._inner = inner
        self._turns = {unit.label: unit.turn for unit in units}

    def all_reduce(self, tensors: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        """Return the sums over replicas, in buckets."""
        gradients = [
            Gradient(tensor, label, turn=self._turns[label.rsplit(", ", 1)[0]])
            for tensor, label in zip(tensors, labels, strict=True)
        ]
        return [one.value for one in self._inner.reduce(gradients)]

    def all_to_all(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows for this replica."""
        arrived = replica_sums.rows_for_this_replica(rows, label)
        return tf.ensure_shape(arrived, rows.shape)

    def all_gather(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all replicas."""
        return replica_sums.rows_from_replicas(rows, label)


def is_compressed(codec: Codec, spec: tf.TensorSpec) -> bool:
    """Return whether a codec is used for the gradients of a variable.

    Args:
        codec: has `min_saving`.
        spec: of the variable.

    Example:
        >>> from tfdist.compression import QSGD
        >>> [is_compressed(QSGD(bits=8), tf.TensorSpec(shape, tf.float32)) for shape in ([500, 10], [500])]
        [True, False]
    """
    if not spec.dtype.is_floating or spec.shape.rank < 2 or not spec.shape.num_elements():
        return False
    wide = tf.TensorSpec(spec.shape, _wide(spec.dtype))
    whole = reduced_bytes(spec.shape.num_elements(), spec.dtype.size, _MEMBERS)
    return whole >= codec.min_saving * codec.wire_bytes(wide, _MEMBERS)


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype.size < 4 else dtype


def _in_dtype_of(gradient: Gradient, value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.cast(value, gradient.value.dtype)


def _variable(name: str, initial: tf.Tensor) -> keras.Variable:
    return keras.Variable(initial, dtype=initial.dtype.name, trainable=False, name=name.replace("/", "_"))
