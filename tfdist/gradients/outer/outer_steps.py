"""The meetings of `DiLoCo`: workers exchange changes of weights, and an outer optimizer makes one step from them."""

import contextlib
import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.keras import fused_updates
from tfdist.compression import messages, registry
from tfdist.compression.codec import Codec
from tfdist.compression.codec_exchange import InTurn, carried
from tfdist.compression.codecs.quantized import QSGD
from tfdist.compression.error_feedback import ERRORS, ErrorFeedback
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.outer import fragments, worker_weights
from tfdist.gradients.outer.meeting_schedules import DiLoCo, Event
from tfdist.gradients.outer.meetings import Group, Load, Meeting, median_seconds
from tfdist.gradients.outer.worker_weights import Outside
from tfdist.gradients.reduction.codec_plan import agreed_costs

# Small groups: the error of a number is less than the number itself, or a memory of errors would grow. Levels of the
# largest number: those of the Euclidean norm are as coarse as most of the numbers of a group, and would be noise.
_WIRES = {
    "int8": ErrorFeedback(codec=QSGD(bits=8, norm="largest")),
    "int4": ErrorFeedback(codec=QSGD(bits=4, group=32, norm="largest")),
}


def _default_optimizer() -> keras.optimizers.Optimizer:
    # With the papers' momentum of 0.9 an overshoot lasts for some twenty exchanges, which many trainings do not have.
    return keras.optimizers.SGD(0.7, momentum=0.5, nesterov=True)


def codec_of(wire: Any) -> Codec | None:
    """Return the codec that a schedule asks for; None sends all."""
    if wire is None:
        return None
    if isinstance(wire, str) and wire in _WIRES:
        return _WIRES[wire]
    if isinstance(wire, str):
        validation.one_of("wire", wire, [*_WIRES, *registry.names()])
    codec = registry.codec_of(wire)
    if codec.by_tensor or codec.has_momentum or codec.shown == "auto":
        raise ConfigError(
            f"wire is {codec.shown!r}, which needs the axes of a gradient, a momentum or a measured step; fragments "
            "are rows of numbers. Take 'int4', 'int8', or a codec such as ErrorFeedback(codec=TopK(density=0.02)).",
            name="wire",
            received=wire,
        )
    return codec


def optimizer_of(outer: Any) -> keras.optimizers.Optimizer:
    """Return a new optimizer for a fragment."""
    made = outer if isinstance(outer, keras.optimizers.Optimizer) else outer() if callable(outer) else None
    if not isinstance(made, keras.optimizers.Optimizer):
        raise ConfigTypeError(
            f"outer is {validation.shown(outer)} ({type(outer).__name__}); it must be a Keras optimizer or a function "
            "that makes one, such as lambda: keras.optimizers.SGD(0.7, momentum=0.5, nesterov=True).",
            name="outer",
            received=validation.shown(outer),
        )
    # Keras' numbers of optimizers would be counted among those of the model's, which differ if a script makes others
    new = type(made).from_config({**made.get_config(), "name": "outer"})
    fused_updates.let_update_in_one_pass(new)
    return new


class _Fragment:
    """A part of the weights: the values agreed on last, the outer optimizer, and the codec's memory."""

    def __init__(
        self, number: int, pieces: list[fragments.Piece], values: tf.Tensor, schedule: DiLoCo, codec: Codec | None
    ) -> None:
        self.number = number
        self.pieces = pieces
        self.agreed = keras.Variable(values, name=f"agreed_{number}", dtype=values.dtype.name, trainable=True)
        self.optimizer = optimizer_of(_default_optimizer if schedule.outer is None else schedule.outer)
        self.optimizer.build([self.agreed])
        states = [] if codec is None else codec.init(tf.TensorSpec(values.shape, values.dtype))
        self.rules = [state.rule for state in states]
        self.memory = [
            keras.Variable(one.initial, name=f"memory_{number}_{i}", dtype=one.initial.dtype.name, trainable=False)
            for i, one in enumerate(states)
        ]

    @property
    def numbers(self) -> int:
        return int(self.agreed.shape[0])


class _Flight(NamedTuple):
    """A fragment under way: its number, its exchange, and what this worker had changed when it was sent."""

    fragment: int
    exchange: Outside[list[tf.Tensor]]
    own: tf.Tensor


class _Landing:
    """The variables that keep what has arrived for backups; one fragment at a time is under way, so all share them."""

    def __init__(self, numbers: int, dtype: tf.DType, states: list[keras.Variable]) -> None:
        def zeros(name: str, shape: Any, dtype: tf.DType) -> keras.Variable:
            return keras.Variable(tf.zeros(shape, dtype), name=name, dtype=dtype.name, trainable=False)

        #: 1 plus the number of the fragment that was sent, or 0
        self.awaited = keras.Variable(0, name="awaited_fragment", dtype="int64", trainable=False)
        self.mean = zeros("arrived", [numbers], dtype)
        self.own = zeros("sent", [numbers], dtype)
        self.states = [zeros(f"arrived_state_{i}", one.shape, tf.as_dtype(one.dtype)) for i, one in enumerate(states)]

    def store(self, flight: _Flight) -> None:
        """Wait for a fragment, and keep it."""
        mean, *states = flight.exchange.result()
        for variable, values in ((self.mean, mean), (self.own, flight.own)):
            variable.assign(tf.pad(values, [[0, variable.shape[0] - values.shape[0]]]))
        for variable, value in zip(self.states, states, strict=False):  # none travel with most fragments
            variable.assign(value)


class OuterSteps(Meeting):
    """The meetings of `DiLoCo`."""

    remembers = True

    def __init__(self, schedule: DiLoCo, group: Group, model: keras.Model) -> None:
        super().__init__(schedule, group, model)
        self._schedule = schedule
        self._codec = codec_of(schedule.wire)
        self._fragments: list[_Fragment] = []
        self._flight: _Flight | None = None
        self._landing: _Landing | None = None  # with a delay

    def make(self) -> None:
        weights = worker_weights.weights_of(self._model)
        sizes = [int(tf.TensorShape(one.shape).num_elements()) for one in weights]
        pieces = fragments.divided(sizes, self._schedule.fragments)
        if not all(pieces):
            raise ConfigError(
                f"fragments is {self._schedule.fragments}, and the model has {sum(sizes)} weights to train. Ask for "
                "fewer.",
                name="fragments",
                received=self._schedule.fragments,
            )
        dtype = worker_weights.common_dtype(weights)
        if dtype.is_complex:
            self._codec = None  # codecs encode real numbers
        self._fragments = [
            _Fragment(number, one, self._values(one), self._schedule, self._codec) for number, one in enumerate(pieces)
        ]
        if self._schedule.delay:
            states = worker_weights.states_of(self._model)
            self._landing = _Landing(max(one.numbers for one in self._fragments), dtype, states)

    def begin(self) -> None:
        """Agree on the model's weights; exchanges that are under way are discarded."""
        self.settle()
        for one in self._fragments:
            one.agreed.assign(self._values(one.pieces))
        if self._landing is not None:
            self._landing.awaited.assign(0)

    def memory(self) -> list[ShardedState]:
        own = [variable for one in self._fragments for variable in (one.agreed, *one.optimizer.variables)]
        landing = self._landing
        own += [] if landing is None else [landing.awaited, landing.mean, *landing.states]
        sent = [] if landing is None else [landing.own]
        pairs = [pair for one in self._fragments for pair in zip(one.memory, one.rules, strict=True)]
        kept = [variable for variable, rule in pairs if rule != "sum"]
        return [
            ShardedState("the weights that workers agreed on", [*own, *kept], rule="keep", axis="worker"),
            ShardedState("the changes that workers have sent", sent, rule="mean", axis="worker"),
            ShardedState(ERRORS, [variable for variable, rule in pairs if rule == "sum"], rule="sum", axis="worker"),
        ]

    def perform(self, event: Event) -> None:
        one = self._fragments[event.fragment]
        if event.kind == "apply":
            self._land(one)
            return
        delta = one.agreed - self._values(one.pieces)
        states = worker_weights.read(worker_weights.states_of(self._model)) if self._is_last(one) else []
        exchange = functools.partial(self._sent, one, delta, states)
        if event.kind == "meet":
            self._apply(one, exchange(), None)
            return
        assert self._landing is not None
        self._landing.awaited.assign(event.fragment + 1)
        self._flight = _Flight(event.fragment, Outside(exchange), delta)

    def _land(self, one: _Fragment) -> None:
        """Apply a fragment that was sent, unless another training had sent it."""
        landing, flight = self._landing, self._flight
        assert landing is not None
        if flight is not None and flight.fragment == one.number:
            self._flight = None
            self._apply(one, flight.exchange.result(), flight.own)
        elif int(landing.awaited.numpy()) == one.number + 1:
            states = landing.states if self._is_last(one) else []
            mean, own, *kept = (tf.convert_to_tensor(each.value) for each in (landing.mean, landing.own, *states))
            self._apply(one, [mean[: one.numbers], *kept], own[: one.numbers])
        landing.awaited.assign(0)

    def settle(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            assert self._landing is not None
            self._landing.store(flight)

    def known(self) -> list[tf.Tensor] | None:
        if not self._fragments:
            return None
        parts: dict[int, list[tf.Tensor]] = {}
        for one in self._fragments:
            for piece, values in zip(one.pieces, _apart(one.pieces, one.agreed.value), strict=True):
                parts.setdefault(piece.variable, []).append(values)
        weights = worker_weights.weights_of(self._model)
        return [tf.reshape(tf.concat(parts[number], axis=0), one.shape) for number, one in enumerate(weights)]

    def load(self) -> Load:
        """Return the cost of the last fragment: no other is larger, and states travel with it."""
        one, workers = self._fragments[-1], self._group.size
        states = self._all_reduced_bytes(worker_weights.states_of(self._model))
        stepping = self._stepping_seconds(one)
        if self._codec is None:
            return Load(self._all_reduced_bytes([one.agreed]) + states, stepping_seconds=stepping)
        (cost,) = agreed_costs(self._group.traced.collective, [self._codec])
        sent = self._codec.wire_bytes(tf.TensorSpec([one.numbers], one.agreed.dtype), workers)
        return Load(sent + states, cost.seconds + cost.seconds_per_element * one.numbers, stepping)

    def _stepping_seconds(self, one: _Fragment) -> float:
        """Return the seconds that a fragment takes from steps, by one that changes nothing."""
        values = self._values(one.pieces)
        states = worker_weights.read(worker_weights.states_of(self._model))
        tried = _Fragment(one.number, one.pieces, values, self._schedule, self._codec)

        def meet() -> None:
            delta = tried.agreed - self._values(one.pieces)
            self._apply(tried, [delta, *states], delta)

        seconds = median_seconds(meet)
        self._write(one.pieces, values)  # an outer optimizer may have decayed them
        return seconds

    def _is_last(self, one: _Fragment) -> bool:
        return one.number == self._schedule.fragments - 1

    def _values(self, pieces: list[fragments.Piece]) -> tf.Tensor:
        weights = worker_weights.weights_of(self._model)
        dtype = worker_weights.common_dtype(weights)
        parts = [worker_weights.read_part(weights[piece.variable], piece.begin, piece.end, dtype) for piece in pieces]
        return tf.concat(parts, axis=0)

    def _write(self, pieces: list[fragments.Piece], values: tf.Tensor) -> None:
        weights = worker_weights.weights_of(self._model)
        for piece, part in zip(pieces, _apart(pieces, values), strict=True):
            worker_weights.write_part(weights[piece.variable], piece.begin, part)

    def _sent(self, one: _Fragment, delta: tf.Tensor, states: list[tf.Tensor]) -> list[tf.Tensor]:
        """Exchange a fragment, in a graph shared by all fragments of its size, and store the codec's memory."""
        step = tf.cast(one.optimizer.iterations.value, tf.int32)
        memory = [tf.convert_to_tensor(variable.value) for variable in one.memory]
        name = f"exchange {delta.shape[0]} numbers and {len(states)} states"
        # States travel side by side. TensorFlow's collectives never return in a single thread (2.21).
        is_simple = not states and not self._group.traced.collective.keeps_program_order
        with worker_weights.in_this_thread() if is_simple else contextlib.nullcontext():
            arrived, kept = self._traced(name, self._exchange, delta, states, memory, step, tf.constant(one.number))
        for variable, value in zip(one.memory, kept, strict=True):
            variable.assign(value)
        return list(arrived)

    def _exchange(
        self, delta: tf.Tensor, states: list[tf.Tensor], memory: list[tf.Tensor], step: tf.Tensor, number: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        means = self._group.mean(states, [f"fragment, state {place}" for place in range(len(states))])
        kept = memory

        def exchange(carrier: TracedCollective, mine: list[tf.Tensor]) -> list[tf.Tensor]:
            nonlocal kept
            if self._codec is None or carrier.size == 1:
                return carrier.all_reduce(mine, ["fragment"])
            context = messages.context_of(carrier.rank, carrier.size, step=step, place=number)
            (done,) = carried([self._codec.exchange(mine[0], tuple(memory), context)], ["fragment"], InTurn(carrier))
            kept = list(done.state)
            return [done.total]

        return [*self._group.exchanged([delta], ["fragment"], exchange), *means], kept

    def _apply(self, one: _Fragment, arrived: list[tf.Tensor], own: tf.Tensor | None) -> None:
        """Make the outer step eagerly: to trace a graph for each fragment takes longer than hundreds of calls.

        ``own`` is what this worker had sent, the former agreed weights minus its own, if steps continued meanwhile.
        """
        delta, *states = arrived
        keep = self._schedule.keep
        before = tf.convert_to_tensor(one.agreed.value)
        one.optimizer.apply([delta], [one.agreed])
        agreed = tf.convert_to_tensor(one.agreed.value)
        if own is not None and keep is None:  # small numbers are added up first, so weights are rounded once
            self._write(one.pieces, self._values(one.pieces) + (agreed - before + own))
        else:
            self._write(one.pieces, keep * self._values(one.pieces) + (1 - keep) * agreed if keep else agreed)
        if states:
            worker_weights.write(worker_weights.states_of(self._model), states)


def _apart(pieces: list[fragments.Piece], values: tf.Tensor) -> list[tf.Tensor]:
    return tf.split(values, [piece.end - piece.begin for piece in pieces])
