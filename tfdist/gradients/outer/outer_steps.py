"""The meetings of `DiLoCo`: workers exchange changes of weights, and an outer optimizer makes one step from them."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import TracedCollective
from tfdist.compression import messages, registry
from tfdist.compression.codec import Codec
from tfdist.compression.codec_exchange import carried
from tfdist.compression.codecs.quantized import QSGD
from tfdist.compression.error_feedback import ERRORS, ErrorFeedback
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.outer import worker_weights
from tfdist.gradients.outer.meeting_schedules import DiLoCo, Event, Piece, divided
from tfdist.gradients.outer.meetings import Group, Load, Meeting
from tfdist.gradients.outer.worker_weights import Outside
from tfdist.gradients.reduction.codec_plan import agreed_costs

# Small groups: the error of a number is less than the number itself, or a memory of errors would grow.
_WIRES = {"int8": ErrorFeedback(codec=QSGD(bits=8)), "int4": ErrorFeedback(codec=QSGD(bits=4, group=32))}


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
    if outer is None:
        return keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    made = outer if isinstance(outer, keras.optimizers.Optimizer) else outer() if callable(outer) else None
    if not isinstance(made, keras.optimizers.Optimizer):
        raise ConfigTypeError(
            f"outer is {validation.shown(outer)} ({type(outer).__name__}); it must be a Keras optimizer or a function "
            "that makes one, such as lambda: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True).",
            name="outer",
            received=validation.shown(outer),
        )
    return type(made).from_config(made.get_config())


def _numbers(value: tf.Tensor, piece: Piece) -> tf.Tensor:
    """Return the numbers of a piece of a variable with this value; whole variables, as most are, are not cut."""
    flat = tf.reshape(tf.cast(value, tf.float32), [-1])
    return flat if flat.shape[0] == piece.end - piece.begin else flat[piece.begin : piece.end]


class _Fragment:
    """A part of the weights: the values agreed on last, the outer optimizer, and the codec's memory."""

    def __init__(self, number: int, pieces: list[Piece], values: tf.Tensor, schedule: DiLoCo) -> None:
        self.number = number
        self.pieces = pieces
        self.agreed = keras.Variable(values, name=f"agreed_{number}", dtype="float32", trainable=True)
        self.optimizer = optimizer_of(schedule.outer)
        self.optimizer.build([self.agreed])
        codec = codec_of(schedule.wire)
        states = [] if codec is None else codec.init(tf.TensorSpec(values.shape, tf.float32))
        self.rules = [state.rule for state in states]
        self.memory = [
            keras.Variable(one.initial, name=f"memory_{number}_{i}", dtype=one.initial.dtype.name, trainable=False)
            for i, one in enumerate(states)
        ]
        self.arrived: list[keras.Variable] = []
        if schedule.delay:
            zeros = tf.zeros_like(values)
            self.arrived = [keras.Variable(zeros, name=f"arrived_{number}", dtype="float32", trainable=False)]


class OuterSteps(Meeting):
    """The meetings of `DiLoCo`."""

    remembers = True

    def __init__(self, schedule: DiLoCo, group: Group, model: keras.Model) -> None:
        super().__init__(schedule, group, model)
        self._schedule = schedule
        self._codec = codec_of(schedule.wire)
        self._fragments: list[_Fragment] = []
        self._flight: tuple[int, Outside[list[tf.Tensor]]] | None = None
        self._awaited: keras.Variable | None = None  # 1 plus the number of the fragment that was sent, or 0

    def make(self) -> None:
        """Make the agreed values from the current weights."""
        weights = worker_weights.weights_of(self._model)
        sizes = [int(tf.TensorShape(one.shape).num_elements()) for one in weights]
        pieces = divided(sizes, self._schedule.fragments)
        if not all(pieces):
            raise ConfigError(
                f"fragments is {self._schedule.fragments}, and the model has {sum(sizes)} weights to train. Ask for "
                "fewer.",
                name="fragments",
                received=self._schedule.fragments,
            )
        self._fragments = [
            _Fragment(number, one, self._values(one), self._schedule) for number, one in enumerate(pieces)
        ]
        self._awaited = keras.Variable(0, name="awaited_fragment", dtype="int64", trainable=False)
        if self._schedule.delay:  # those of states travel with the last fragment
            states = worker_weights.states_of(self._model)
            self._fragments[-1].arrived += [
                keras.Variable(tf.zeros(one.shape), name=f"arrived_state_{i}", dtype="float32", trainable=False)
                for i, one in enumerate(states)
            ]

    def begin(self) -> None:
        """Agree on the model's weights; exchanges that are under way are discarded."""
        self.settle()
        for one in self._fragments:
            one.agreed.assign(self._values(one.pieces))
        if self._awaited is not None:
            self._awaited.assign(0)

    def memory(self) -> list[ShardedState]:
        """Return the agreed values, the outer optimizers, and the codec's memory."""
        own = [variable for one in self._fragments for variable in (one.agreed, *one.optimizer.variables, *one.arrived)]
        own += [] if self._awaited is None else [self._awaited]
        pairs = [pair for one in self._fragments for pair in zip(one.memory, one.rules, strict=True)]
        kept = [variable for variable, rule in pairs if rule != "sum"]
        return [
            ShardedState("the weights that workers agreed on", [*own, *kept], rule="keep", axis="worker"),
            ShardedState(ERRORS, [variable for variable, rule in pairs if rule == "sum"], rule="sum", axis="worker"),
        ]

    def perform(self, event: Event) -> None:
        """Exchange a fragment, send it, or apply the one that has arrived."""
        one = self._fragments[event.fragment]
        if event.kind == "apply":
            self.settle()
            assert self._awaited is not None
            if int(self._awaited.numpy()) == event.fragment + 1:  # else another training had sent it
                self._apply(one, [variable.value for variable in one.arrived])
                self._awaited.assign(0)
            return
        delta = one.agreed - self._values(one.pieces)
        states = worker_weights.read(worker_weights.states_of(self._model)) if self._is_last(one) else []
        exchange = functools.partial(self._sent, one, delta, states)
        if event.kind == "meet":
            self._apply(one, exchange())
            return
        assert self._awaited is not None
        self._awaited.assign(event.fragment + 1)
        self._flight = event.fragment, Outside(exchange)

    def settle(self) -> None:
        """Wait for the fragment that is under way."""
        if self._flight is not None:
            number, flight = self._flight
            self._flight = None
            for variable, value in zip(self._fragments[number].arrived, flight.result(), strict=True):
                variable.assign(value)

    def known(self) -> list[tf.Tensor] | None:
        """Return the weights on which workers agreed last."""
        if not self._fragments:
            return None
        parts: dict[int, list[tf.Tensor]] = {}
        for one in self._fragments:
            for piece, values in zip(one.pieces, self._apart(one, one.agreed.value), strict=True):
                parts.setdefault(piece.variable, []).append(values)
        weights = worker_weights.weights_of(self._model)
        return [tf.reshape(tf.concat(parts[number], axis=0), one.shape) for number, one in enumerate(weights)]

    def load(self) -> Load:
        """Return the cost of the last fragment: no other is larger, and states travel with it."""
        one, workers = self._fragments[-1], self._group.size
        states = self._all_reduced_bytes(worker_weights.states_of(self._model))
        if self._codec is None:
            return Load(self._all_reduced_bytes([one.agreed]) + states)
        numbers = int(tf.TensorShape(one.agreed.shape).num_elements())
        (cost,) = agreed_costs(self._group.traced.collective, [self._codec])
        sent = self._codec.wire_bytes(tf.TensorSpec([numbers], tf.float32), workers)
        return Load(sent + states, cost.seconds + cost.seconds_per_element * numbers)

    def _is_last(self, one: _Fragment) -> bool:
        return one.number == self._schedule.fragments - 1

    def _values(self, pieces: list[Piece]) -> tf.Tensor:
        """Return the current numbers of a fragment."""
        weights = worker_weights.weights_of(self._model)
        values = worker_weights.read([weights[piece.variable] for piece in pieces])
        return tf.concat([_numbers(value, piece) for value, piece in zip(values, pieces, strict=True)], axis=0)

    def _apart(self, one: _Fragment, values: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(values, [piece.end - piece.begin for piece in one.pieces])

    def _sent(self, one: _Fragment, delta: tf.Tensor, states: list[tf.Tensor]) -> list[tf.Tensor]:
        """Exchange a fragment, in a graph shared by all fragments of its size, and store the codec's memory."""
        step = tf.cast(one.optimizer.iterations.value, tf.int32)
        memory = [tf.convert_to_tensor(variable.value) for variable in one.memory]
        name = f"exchange {delta.shape[0]} numbers and {len(states)} states"
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
            (done,) = carried([self._codec.exchange(mine[0], tuple(memory), context)], ["fragment"], carrier)
            kept = list(done.state)
            return [done.total]

        return [*self._group.exchanged([delta], ["fragment"], exchange), *means], kept

    def _apply(self, one: _Fragment, arrived: list[tf.Tensor]) -> None:
        """Make the outer step eagerly: to trace a graph for each fragment takes longer than hundreds of calls."""
        delta, *states = arrived
        one.optimizer.apply([delta], [one.agreed])
        weights = worker_weights.weights_of(self._model)
        kept = self._schedule.keep
        for piece, new in zip(one.pieces, self._apart(one, tf.convert_to_tensor(one.agreed.value)), strict=True):
            variable = weights[piece.variable]
            if kept:
                new = kept * _numbers(worker_weights.read([variable])[0], piece) + (1 - kept) * new
            if piece.end - piece.begin < (size := int(tf.TensorShape(variable.shape).num_elements())):
                flat = tf.reshape(tf.cast(worker_weights.read([variable])[0], tf.float32), [-1])
                before, _, behind = tf.split(flat, [piece.begin, piece.end - piece.begin, size - piece.end])
                new = tf.concat([before, new, behind], axis=0)
            worker_weights.write([variable], [tf.reshape(new, variable.shape)])
        if states:
            worker_weights.write(worker_weights.states_of(self._model), states)
