"""The reducer that compresses: the gradients that a codec compresses, and the memory of each replica."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives import buckets
from tfdist.collectives.traced import in_buckets
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compression import messages
from tfdist.compression.codec import Codec, reduced_bytes
from tfdist.compression.codec_exchange import carried
from tfdist.compression.messages import Context
from tfdist.gradients.reduction.codec_plan import Memory, Plan
from tfdist.gradients.reduction.reducer import Around, Gradient, GradientReducer, choices_of

# Whether a gradient is compressed is decided for this many members: the memory must not depend on their number.
_MEMBERS = 2
_RATE = "compression_learning_rate"


class _Unit:
    """Gradients that are compressed as one tensor."""

    def __init__(self, codec: Codec, gradients: dict[int, Gradient], values: dict[int, tf.Tensor]) -> None:
        self.codec = codec
        self.gradients = gradients
        self.indices = list(gradients)
        self.places = [one.place for one in gradients.values()]
        self.label = "compressed " + " and ".join(one.path for one in gradients.values())
        self._shapes = [value.shape for value in values.values()]
        self.value = joined(list(values.values()))

    def apart(self, value: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return the value of each gradient, by its index."""
        if len(self.indices) == 1:
            return {self.indices[0]: value}
        parts = tf.split(value, [shape.num_elements() for shape in self._shapes])
        shaped = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return dict(zip(self.indices, shaped, strict=True))

    def check(self) -> Gradient:
        """Return zero, or NaN if any element is not finite: codecs may turn such elements into finite numbers."""
        finite = tf.reduce_all(tf.math.is_finite(self.value))
        return Gradient(tf.where(finite, 0.0, float("nan")), f"whether {self.label} is finite")


@dataclass(frozen=True)
class Compression:
    """A choice of compression, which makes a reducer with a codec around another reducer."""

    codec: Codec
    learning_rate: Callable[[], Any] | None = None

    def __call__(self, inner: GradientReducer) -> "Compressed":
        return Compressed(self.codec, inner, self.learning_rate)


def codec_of(optimizer: Any) -> Codec | None:
    compression = choices_of(optimizer).compression
    return compression.codec if isinstance(compression, Compression) else None


class Compressed(Around):
    """A reducer that compresses gradients of two axes or more if that saves enough, and passes on the others.

    Each replica has a memory of its own for each gradient. Rows of tables (`tf.IndexedSlices`) are passed on, because
    they are few already. A gradient that is not finite on one replica is not finite on any.
    """

    def __init__(self, codec: Codec, inner: GradientReducer, learning_rate: Callable[[], Any] | None = None) -> None:
        super().__init__(inner)
        self._codec = codec
        self._learning_rate = learning_rate if codec.needs_learning_rate else None
        self._plan = Plan(codec)
        self._memory = Memory(self._plan.options)
        self._specs: dict[int, tf.TensorSpec] = {}
        self._never: set[int] = set()  # of those, gradients with a momentum that are not compressed

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        fine = [place for place, spec in enumerate(specs) if is_compressed(self._codec, spec)]
        remembered = range(len(specs)) if self._codec.has_momentum else fine
        self._specs = {
            place: tf.TensorSpec(specs[place].shape, _wide(specs[place].dtype), specs[place].name)
            for place in remembered
            if specs[place].dtype.is_floating
        }
        self._never = set(self._specs) - set(fine)
        counters = self._plan.counters(len(specs))
        if self._learning_rate is not None:
            counters.append((_RATE, tf.zeros([], tf.float32)))
        self._memory.make(self._specs, len(specs), counters)
        return [*self._memory.variables, *self._inner.variables(specs)]

    def sharded_state(self) -> list[ShardedState]:
        """Return the memory; the first update with another number of replicas sends all that was held back."""
        return [*self._memory.sharded_state(), *self._inner.sharded_state()]

    def renew(self, workers: Any, trained_seconds: float) -> bool:
        return bool(self._specs) and self._plan.renew(workers, self._memory, self._specs, trained_seconds)

    def alone(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the whole gradients, plus the numbers held back when there were more replicas."""
        if self._codec.has_momentum:
            return [self._whole(one) for one in gradients]
        mine = {i: one for i, one in enumerate(gradients) if one.place in self._specs and not _has_rows(one)}
        if not mine or not self._codec.has_memory or tf_strategies.replicas_here() > 1:
            return gradients
        places = [one.place for one in mine.values()]
        members = tf.gather(tf.convert_to_tensor(self._memory.members), places)

        def with_what_was_held_back() -> list[tf.Tensor]:
            sent = [self._whole(one).value for one in mine.values()]
            self._memory.count(places, 1)
            return sent

        # several replicas made the last update
        is_first = tf.reduce_any((members != 0) & (members != 1))
        values = tf.cond(is_first, with_what_was_held_back, lambda: [one.value for one in mine.values()])
        sent = dict(zip(mine, values if len(mine) > 1 else tf.nest.flatten(values), strict=True))
        return [replace(one, value=sent[i]) if i in sent else one for i, one in enumerate(gradients)]

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        gradients = [self._whole(one) if one.place in self._never else self._dense(one) for one in gradients]
        units = self._units(gradients)
        compressed = {index for unit in units for index in unit.indices}
        others = [index for index in range(len(gradients)) if index not in compressed]
        checked = [unit for unit in units if unit.codec.accuracy not in ("lossless", "rounded")]
        sent: list[tuple[int, Any, Gradient]] = [(index, None, gradients[index]) for index in others]
        sent += [(max(unit.indices), unit, unit.check()) for unit in checked]
        sent.sort(key=lambda one: one[0])  # a check leaves as soon as its unit is there
        arrived = self._inner.reduce([one for _, _, one in sent])
        values = {index: one.value for (index, unit, _), one in zip(sent, arrived, strict=True) if unit is None}
        checks = {id(unit): one for (_, unit, _), one in zip(sent, arrived, strict=True) if unit is not None}
        for unit, total in zip(units, self._exchanged(units) if units else [], strict=True):
            if id(unit) in checks:
                total = total + tf.cast(checks[id(unit)].value, total.dtype)
            values.update(unit.apart(total))
        for index, one in enumerate(gradients):
            if not isinstance(values[index], tf.IndexedSlices):
                values[index] = tf.cast(values[index], one.value.dtype)
        return [replace(one, value=values[index]) for index, one in enumerate(gradients)]

    def _units(self, gradients: list[Gradient]) -> list[_Unit]:
        """Return the gradients that are compressed together, in the order of the last gradient of each unit."""
        groups: dict[int, dict[int, tf.Tensor]] = {}
        codecs: dict[int, Codec] = {}
        for index, one in enumerate(gradients):
            codec = self._plan.of(one.place) if one.place in self._specs and one.place not in self._never else None
            if codec is not None and not _has_rows(one):
                codecs[id(codec)] = codec
                groups.setdefault(id(codec), {})[index] = tf.cast(one.value, _wide(one.value.dtype))
        size = tf_strategies.bucket_bytes_here() or buckets.DEFAULT_BYTES
        units = []
        for key, dense in groups.items():
            codec = codecs[key]
            parts = grouped(codec, dense, size)
            units += [_Unit(codec, {i: gradients[i] for i in part}, {i: dense[i] for i in part}) for part in parts]
        return sorted(units, key=lambda unit: max(unit.indices))

    def _dense(self, gradient: Gradient) -> Gradient:
        """Return a gradient as dense if rows have a momentum too."""
        return replace(gradient, value=tf.convert_to_tensor(gradient.value)) if self._codec.has_momentum else gradient

    def _whole(self, gradient: Gradient) -> Gradient:
        """Return a codec's value of a gradient that it does not compress, and update its memory."""
        codec = self._plan.of(gradient.place) or self._plan.options[-1]
        variables = self._memory.of(gradient.place, codec)
        value = tf.convert_to_tensor(gradient.value)
        given = tf.cast(value, _wide(value.dtype)), tuple(tf.convert_to_tensor(one) for one in variables)
        context = messages.context_of(0, tf_strategies.replicas_here())
        sent, after = codec.whole(*given, context)
        for variable, state in zip(variables, after, strict=True):
            variable.assign(state)
        return replace(gradient, value=tf.cast(sent, value.dtype))

    def _exchanged(self, units: list[_Unit]) -> list[tf.Tensor]:
        """Return the totals of units, and update their memories."""
        places = [place for unit in units for place in unit.places]
        size = tf_strategies.replicas_here()
        contexts = self._contexts(units, size)
        given = [(unit, self._state(unit), context) for unit, context in zip(units, contexts, strict=True)]
        carrier = _Carrier(self._inner)

        def compressed() -> list[Any]:
            exchanges = [unit.codec.exchange(unit.value, state, context) for unit, state, context in given]
            ends = carried(exchanges, [unit.label for unit in units], carrier)
            return [[end.total for end in ends], [list(end.state) for end in ends]]

        def whole() -> list[Any]:
            sent = [unit.codec.whole(unit.value, state, context) for unit, state, context in given]
            totals = carrier.all_reduce([tensor for tensor, _ in sent], [f"{unit.label}, whole" for unit in units])
            return [totals, [list(state) for _, state in sent]]

        if any(unit.codec.start_after or unit.codec.has_memory for unit in units):
            totals, after = tf.cond(self._is_whole(units, size), whole, compressed)
        else:
            totals, after = compressed()
        for unit, state in zip(units, after, strict=True):
            self._remember(unit, state)
        self._memory.count(places, size)
        return list(totals)

    def _is_whole(self, units: list[_Unit], size: int) -> tf.Tensor:
        """Return whether an update goes uncompressed: an early one, or the first with another number of replicas."""
        places = [place for unit in units for place in unit.places]
        start_after = [unit.codec.start_after for unit in units for _ in unit.places]
        updates, members = (
            tf.gather(tf.convert_to_tensor(one), places) for one in (self._memory.updates, self._memory.members)
        )
        return tf.reduce_any((updates < start_after) | ((members != 0) & (members != size)))

    def _contexts(self, units: list[_Unit], size: int) -> list[Context]:
        updates = tf.convert_to_tensor(self._memory.updates)
        slower = None
        if self._learning_rate is not None:
            last_rate = self._memory.others[_RATE]
            rate, last = tf.cast(self._learning_rate(), tf.float32), tf.convert_to_tensor(last_rate)
            slower = tf.where(last > 0, tf.math.divide_no_nan(last, rate), 1.0)
            last_rate.assign(rate)
        rank = tf_strategies.index_here()
        return [
            messages.context_of(rank, size, step=updates[unit.places[0]], place=unit.places[0], slower=slower)
            for unit in units
        ]

    def _state(self, unit: _Unit) -> tuple[tf.Tensor, ...]:
        own = [[tf.convert_to_tensor(one) for one in self._memory.of(place, unit.codec)] for place in unit.places]
        return tuple(joined(values) for values in zip(*own, strict=True))

    def _remember(self, unit: _Unit, state: Sequence[tf.Tensor]) -> None:
        for number, value in enumerate(state):
            for place, part in zip(unit.places, unit.apart(value).values(), strict=True):
                self._memory.of(place, unit.codec)[number].assign(part)


class _Carrier:
    """The carrier of a replica's exchanges."""

    def __init__(self, inner: GradientReducer) -> None:
        self._inner = inner

    def all_reduce(self, tensors: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        gradients = [Gradient(tensor, label) for tensor, label in zip(tensors, labels, strict=True)]
        return [one.value for one in self._inner.reduce(gradients)]

    def all_to_all(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        arrived = tf.distribute.get_strategy().extended.all_to_all_in_replica(rows, label)
        return tf.ensure_shape(arrived, rows.shape)

    def all_gather(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        return tf.distribute.get_strategy().extended.all_gather_in_replica(rows, label)


def grouped(codec: Codec, tensors: Mapping[int, Any], bucket_bytes: int) -> list[list[int]]:
    """Return the indices of the tensors that a codec compresses together."""
    return [[index] for index in tensors] if codec.by_tensor else in_buckets(tensors, bucket_bytes)


def joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def is_compressed(codec: Codec, spec: tf.TensorSpec) -> bool:
    """Return whether a codec compresses the gradients of a variable.

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


def _has_rows(gradient: Gradient) -> bool:
    return isinstance(gradient.value, tf.IndexedSlices)
