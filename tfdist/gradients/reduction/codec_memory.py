"""The memory of gradient codecs between updates, one per replica."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.compression.codec import Codec

_COUNTERS = "the counters of compression"


class Memory:
    """The states of codecs for each gradient, and how often each gradient was compressed among how many replicas.

    Codecs that may take turns share what has the same name and shape.
    """

    def __init__(self, options: Sequence[Codec]) -> None:
        self._options = list(options)
        self._states: dict[int, dict[tuple[str, tuple[int, ...]], keras.Variable]] = {}
        self._of: dict[tuple[int, int], list[keras.Variable]] = {}
        self._counters: list[keras.Variable] = []
        example = tf.TensorSpec([2, 2], tf.float32)
        self._kinds = {(one.name, one.rule) for codec in self._options for one in codec.init(example)}

    def make(self, specs: dict[int, tf.TensorSpec], count: int, counters: Sequence[tuple[str, tf.Tensor]]) -> None:
        """Make the variables."""
        for place, spec in specs.items():
            name = f"{(spec.name or 'gradient').replace('/', '_')}_compression"
            own: dict[tuple[str, tuple[int, ...]], keras.Variable] = {}
            for codec in self._options:
                mine = self._of[place, id(codec)] = []
                for state in codec.init(spec):
                    key = state.name, tuple(state.initial.shape)
                    if key not in own:
                        own[key] = variable(f"{name}_{len(own)}", state.initial)
                    mine.append(own[key])
            self._states[place] = own
        #: for each gradient: updates, and replicas in the last of them, 0 before the first
        self.updates = variable("compression_updates", tf.zeros([count], tf.int32))
        self.members = variable("compression_members", tf.zeros([count], tf.int32))
        others = [variable(name, value) for name, value in counters]
        self.others = dict(zip([name for name, _ in counters], others, strict=True))
        self._counters = [self.updates, self.members, *others]

    @property
    def variables(self) -> list[keras.Variable]:
        """All of them, in the order in which they were made."""
        return [*(one for own in self._states.values() for one in own.values()), *self._counters]

    def sharded_state(self) -> list[ShardedState]:
        """Return what another number of replicas makes of each; before `make`, the same without variables."""
        found = []
        for name, rule in sorted(self._kinds):
            mine = [one for own in self._states.values() for (kind, _), one in own.items() if kind == name]
            found.append(ShardedState(name, mine, rule=rule))
        return [*found, ShardedState(_COUNTERS, self._counters, rule="keep")]

    def of(self, place: int, codec: Codec) -> list[keras.Variable]:
        """Return what a codec remembers of a gradient, in the order of its `init`."""
        return self._of[place, id(codec)]

    def count(self, places: Sequence[int], size: int) -> None:
        """Count an update of some gradients, among so many replicas."""
        at = tf.constant(list(places))[:, tf.newaxis]
        ones = tf.ones([len(places)], tf.int32)
        self.updates.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(self.updates), at, ones))
        self.members.assign(tf.tensor_scatter_nd_update(tf.convert_to_tensor(self.members), at, size * ones))


def variable(name: str, initial: tf.Tensor) -> keras.Variable:
    """Return a variable that is not trained."""
    return keras.Variable(initial, dtype=initial.dtype.name, trainable=False, name=name)
