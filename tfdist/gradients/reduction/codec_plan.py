"""The codec of each gradient, given or chosen by `Auto` from measurements, and the memory of codecs."""

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives import buckets, traced
from tfdist.collectives.collective import Collective
from tfdist.collectives.link_measuring import measured_link
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compression import auto, messages
from tfdist.compression.auto import Auto, Cost
from tfdist.compression.codec import Codec
from tfdist.compression.codec_exchange import by_itself
from tfdist.compression.codecs.casting import Whole
from tfdist.compression.error_feedback import ErrorFeedback
from tfdist.planner.planner_link import Link

_log = logging.getLogger("tfdist")
_CHOICE, _LINK = "compression_choice", "compression_link"
_COUNTERS = "the counters of compression"
_MANY_BYTES = 1 << 20  # that show the rate of the network: a slow one takes no second for them
_SIDES = 32, 768  # of the matrices that codecs are tried on
_TIMES = 5


class Memory:
    """The variables of codecs for each gradient, with its count of compressed updates and the number of replicas.

    Codecs that may replace each other share variables of the same name and shape.
    """

    def __init__(self, options: Sequence[Codec]) -> None:
        self._options = list(options)
        self._states: dict[int, dict[tuple[str, tuple[int, ...]], keras.Variable]] = {}
        self._of: dict[tuple[int, int], list[keras.Variable]] = {}
        self._counters: list[keras.Variable] = []
        example = tf.TensorSpec([2, 2], tf.float32)
        self._kinds = {(one.name, one.rule) for codec in self._options for one in codec.init(example)}

    def make(self, specs: dict[int, tf.TensorSpec], count: int, counters: Sequence[tuple[str, tf.Tensor]]) -> None:
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
        #: for each gradient, the number of updates, and of replicas in the last one; 0 before the first
        self.updates = variable("compression_updates", tf.zeros([count], tf.int32))
        self.members = variable("compression_members", tf.zeros([count], tf.int32))
        others = [variable(name, value) for name, value in counters]
        self.others = dict(zip([name for name, _ in counters], others, strict=True))
        self._counters = [self.updates, self.members, *others]

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables, in the order in which they were made."""
        return [*(one for own in self._states.values() for one in own.values()), *self._counters]

    def sharded_state(self) -> list[ShardedState]:
        """Return the states with their rules for another number of replicas; without variables before `make`."""
        found = []
        for name, rule in sorted(self._kinds):
            mine = [one for own in self._states.values() for (kind, _), one in own.items() if kind == name]
            found.append(ShardedState(name, mine, rule=rule))
        return [*found, ShardedState(_COUNTERS, self._counters, rule="keep")]

    def of(self, place: int, codec: Codec) -> list[keras.Variable]:
        """Return the variables of a codec for a gradient, in the order of its `init`."""
        return self._of[place, id(codec)]

    def count(self, places: Sequence[int], size: int) -> None:
        """Count an update of these gradients among ``size`` replicas."""
        at = tf.constant(list(places))[:, tf.newaxis]
        ones = tf.ones([len(places)], tf.int32)
        self.updates.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(self.updates), at, ones))
        self.members.assign(tf.tensor_scatter_nd_update(tf.convert_to_tensor(self.members), at, size * ones))


def variable(name: str, initial: tf.Tensor) -> keras.Variable:
    return keras.Variable(initial, dtype=initial.dtype.name, trainable=False, name=name)


class Plan:
    """The codec of each gradient.

    A choice is made before a step is traced, and is part of the saved state: training that resumes on a similar network
    continues with the same codecs.
    """

    def __init__(self, codec: Codec) -> None:
        self._is_chosen = isinstance(codec, Auto)
        options = codec.options if isinstance(codec, Auto) else [codec]
        # sends what was held back, when a gradient is no longer compressed
        self._last = ErrorFeedback(codec=Whole())
        self.options = [*options, self._last] if self._is_chosen and any(one.has_memory for one in options) else options
        self._choice: dict[int, int] = {}
        self._is_logged = False
        self._measured: tuple[float, float] | None = None  # after how many seconds of training, and how many it took
        self._doubted: Link | None = None  # unlike that of the choice, when it was measured last

    def of(self, place: int) -> Codec | None:
        """Return the codec of a gradient; None if it travels uncompressed."""
        index = self._choice.get(place, 0)
        return None if self._is_chosen and index == 0 else self.options[index]

    def counters(self, count: int) -> list[tuple[str, tf.Tensor]]:
        """Return the names and first values of the variables that store a choice for ``count`` gradients."""
        if not self._is_chosen:
            return []
        return [(_CHOICE, tf.zeros([count], tf.int32)), (_LINK, tf.zeros([2], tf.float32))]

    def renew(self, workers: Any, memory: Memory, specs: Mapping[int, tf.TensorSpec], trained_seconds: float) -> bool:
        """Choose again if the network differs from that of the last choice; all workers call this.

        The network is measured at the first call, and later as often as measurements take at most a hundredth of the
        time. If it differs, it is measured again at the next call, and the difference counts only if it persists. The
        reasons: processors that are busy for a moment look like a slow network, and after another choice a step is
            traced anew.
        """
        if not self._is_chosen or workers.count == 1 or not specs:
            return False
        if workers.gather([self._is_due(trained_seconds)]).any():
            with workers.waiting("the measurement of the network"):
                began = time.monotonic()
                link = measured_link(workers.collective, _MANY_BYTES)
                self._measured = trained_seconds, time.monotonic() - began
                if self._is_another(link, _saved_link(memory)):
                    self._choose(link, workers, memory, specs)
        before, saved = self._choice, _numbers(memory.others[_CHOICE])
        self._choice = {place: int(saved[place]) for place in specs}
        return self._choice != {place: before.get(place, 0) for place in specs}

    def _is_another(self, link: Link, chosen_for: Link | None) -> bool:
        if chosen_for is not None and auto.is_like(link, chosen_for):
            self._doubted = None
            return False
        is_certain = chosen_for is None or (self._doubted is not None and auto.is_like(link, self._doubted))
        self._doubted = None if is_certain else link
        return is_certain

    def _is_due(self, trained_seconds: float) -> bool:
        if self._measured is None or self._doubted is not None:
            return True
        then, taken = self._measured
        return auto.is_due(trained_seconds - then, taken)

    def _choose(self, link: Link, workers: Any, memory: Memory, specs: Mapping[int, tf.TensorSpec]) -> None:
        options = self.options[:-1] if self.options[-1] is self._last else self.options
        given = auto.Measured(
            options=options,
            costs=agreed_costs(workers.collective, options),
            link=link,
            members=workers.count,
            bucket_bytes=buckets.DEFAULT_BYTES,
        )
        chosen = auto.chosen(given, specs)
        now = list(_numbers(memory.others[_CHOICE]))
        if workers.is_chief:
            news = chosen != {place: now[place] for place in specs} or not self._is_logged
            level = logging.WARNING if news else logging.INFO
            _log.log(level, "compression: %s.", auto.described(given, specs, chosen))
            self._is_logged = True
        for place, index in chosen.items():
            held_back = self.options[int(now[place])].has_memory and index == 0
            now[place] = len(self.options) - 1 if held_back else index
        memory.others[_CHOICE].assign(tf.constant(now, tf.int32))
        memory.others[_LINK].assign(tf.constant([link.latency_seconds, 1 / link.bytes_per_second], tf.float32))


def _saved_link(memory: Memory) -> Link | None:
    latency, seconds_per_byte = _numbers(memory.others[_LINK])
    return Link(latency_seconds=latency, bytes_per_second=1 / seconds_per_byte) if seconds_per_byte else None


def _numbers(variable: keras.Variable) -> list[Any]:
    return list(tf_strategies.primary(variable.value).numpy().tolist())


def agreed_costs(collective: Collective, codecs: Sequence[Codec]) -> list[Cost]:
    """Return the cost of each codec while all members compute, as the first one measures it; all members call this."""
    mine = [_cost(codec, collective.size) for codec in codecs]
    flat = tf.constant([number for cost in mine for number in (cost.seconds, cost.seconds_per_element)], tf.float64)
    numbers = collective.broadcast(flat, key=traced.EAGER).numpy().tolist()
    return [Cost(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


@cache
def _cost(codec: Codec, members: int) -> Cost:
    if isinstance(codec, Whole):
        return Cost()
    few, many = ((side * side, _seconds(codec, members, side)) for side in _SIDES)
    return Cost.of(few, many)


def _seconds(codec: Codec, members: int, side: int) -> float:
    spec = tf.TensorSpec([side, side], tf.float32)
    state = tuple(one.initial for one in codec.init(spec))
    matrix = tf.random.stateless_normal(spec.shape, (1, 2))

    @tf.function(autograph=False)
    def compute(tensor: tf.Tensor) -> list[tf.Tensor]:
        end = by_itself(codec.exchange(tensor, state, messages.context_of(0, members)), members)
        return [end.total, *end.state]

    taken = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        compute(matrix)[0].numpy()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])
