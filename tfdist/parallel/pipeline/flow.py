"""The data flow of a model cut into parts: its tensors, their attributes, and the transfers across cuts.

A Keras tensor carries a mask, and the logits of which it is the softmax; layers remove or return these. So the kinds of
layers say nothing: the forward pass is traced once, in a graph that never runs, and tensors are known by identity.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.collective import Collective
from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras.symbolic import graphs, tensor_attributes
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.training.replica import current_step


@dataclass(frozen=True)
class Edge:
    """A value, by its number, that one part makes and a later one takes."""

    number: int
    source: int
    target: int


@dataclass(frozen=True)
class Hung:
    """A value that is an attribute of another one."""

    number: int


@dataclass(frozen=True)
class Value:
    """A tensor of the forward pass: the part that makes it (-1: an input) and, for messages, the layer."""

    part: int
    tensor: Any
    maker: str

    @property
    def spec(self) -> tf.TensorSpec:
        kind = f"is a {type(self.tensor).__name__}"
        if isinstance(self.tensor, tf.Tensor):
            if self.tensor.shape.is_fully_defined():
                return tf.TensorSpec(self.tensor.shape, self.tensor.dtype)
            kind = f"has the shape {self.tensor.shape}"
        raise UnsupportedError(
            f"what {self.maker} returns goes from one stage to another, and {kind}; a stage receives dense tensors "
            "whose sizes are known before they are computed. Cut the model elsewhere (stages=), or let the layer "
            "return sizes that follow from those of its input.",
            name=self.maker,
        )


@dataclass(frozen=True)
class Moment:
    """The values of some symbolic tensors between two calls, and their attributes then."""

    # the number of the value of each symbolic tensor, by the tensor's identity; None: no value
    numbers: dict[int, int | None] = field(default_factory=dict)
    # the attributes of each value that can be reached, by name: another value, or no tensor
    attributes: dict[int, dict[str, Any]] = field(default_factory=dict)
    # the kind and the argument of each activation whose logits Keras finds
    activations: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def needed(self) -> list[int]:
        """The values from which this moment can be restored, ascending: for an activation, its argument."""
        return sorted(set(self.attributes) - set(self.activations))

    def bound(self, tensors: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the values of the symbolic tensors, by the tensors' identity, and all values, by number."""
        made: dict[int, Any] = {}

        def of(number: int) -> Any:
            if number not in made:
                if number in self.activations:
                    kind, argument = self.activations[number]
                    made[number] = tensor_attributes.ACTIVATIONS[kind](of(argument))
                else:
                    made[number] = tf.identity(tensors[number])
            return made[number]

        for number, attributes in self.attributes.items():
            hung = {name: of(one.number) if isinstance(one, Hung) else one for name, one in attributes.items()}
            tensor_attributes.with_attributes(of(number), hung)
        return {key: None if number is None else of(number) for key, number in self.numbers.items()}, made


class Flow:
    """The forward pass of a model in parts, traced for inputs of given sizes, and not run.

    Attributes:
        values: the values by number, in the order of making.
        edges: the transfers between parts; results go to the last part.
        results: the model's results after all calls.
    """

    def __init__(self, model: keras.Model, division: Division, inputs: Sequence[Any], *, training: bool) -> None:
        self._division = division
        self._training = training
        self.values: list[Value] = []
        self._numbers: dict[int, int] = {}
        # by the place of a call: numbers of what is new after it, and how to find it, from a symbolic tensor by names
        self._found: dict[int, list[tuple[int, int, tuple[str, ...]]]] = {}
        self._moments: list[Moment] = []
        self.results = Moment()
        # the number of draws from each random generator, by its identity: before each part, and after the last one
        self._drawn: list[Counter[int]] = []
        self._weights: list[Any] = []
        self._ends: list[Any] = []  # from which gradients may come
        signature = [None if one is None else tf.TensorSpec(one.shape, one.dtype) for one in inputs]
        given = [one for one in signature if one is not None]
        # the graph that never runs; its inputs are those of the model that are there
        self._function = tf.compat.v1.wrap_function(functools.partial(self._trace, model, signature), given)
        self.edges = self._edges()
        self._differentiated = _differentiated(self._ends)
        self._wanted = {*(edge.number for edge in self.edges), *self.results.needed}

    def into(self, part: int) -> list[Edge]:
        return [edge for edge in self.edges if edge.target == part]

    def out_of(self, part: int) -> list[Edge]:
        return [edge for edge in self.edges if edge.source == part]

    def sent(self, part: int) -> list[int]:
        """Return the numbers of the values that a part makes for others, each once."""
        return list(dict.fromkeys(edge.number for edge in self.out_of(part)))

    def draws_before(self, part: int | None) -> Counter[int]:
        """Return the number of draws from each generator, by its identity, before a part; None: in all parts."""
        return self._drawn[-1 if part is None else part]

    def has_gradient(self, edge: Edge) -> bool:
        """Return whether a gradient may go back along the edge; where none does, weights behind it have none."""
        tensor = self.values[edge.number].tensor
        return tf.is_symbolic_tensor(tensor) and tensor.name in self._differentiated

    def run(
        self, part: int, inputs: Sequence[Any], taken: Sequence[tf.Tensor]
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """Compute a part of the model; return the values of its symbolic tensors by identity, and all by number."""
        given = dict(enumerate(one for one in inputs if one is not None))
        given |= {edge.number: one for edge, one in zip(self.into(part), taken, strict=True)}
        values, numbered = self._moments[part].bound(given)
        for place, call in self._division.places_of(part):
            made = call.compute(values, training=self._training)
            values |= {id(tensor): one for tensor, one in zip(call.makes, made, strict=True)}
            for number, key, names in self._found.get(place, ()):
                if number in self._wanted:
                    numbered[number] = functools.reduce(_reached, names, values[key])
        return values, numbered

    def outputs(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the model's flat results with their attributes, from the values that `results` needs."""
        values, _ = self.results.bound(dict(zip(self.results.needed, tensors, strict=True)))
        return [values[id(tensor)] for tensor in self._division.outputs]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The shape and dtype of each result of the model."""
        numbers = [self.results.numbers[id(tensor)] for tensor in self._division.outputs]
        return [self.values[number].spec for number in numbers if number is not None]

    @property
    def masks(self) -> list[int | None]:
        """The number of the mask of each result of the model, or None."""
        numbers = [self.results.numbers[id(tensor)] for tensor in self._division.outputs]
        found = [
            self.results.attributes[number].get(tensor_attributes.MASK) for number in numbers if number is not None
        ]
        return [one.number if isinstance(one, Hung) else None for one in found]

    def needs_weights(self, number: int) -> bool:
        """Return whether a value depends on weights, or on other variables of layers."""
        stand_ins = {id(one.op) for one in self._weights}
        found, left = set(), [self.values[number].tensor.op]
        while left:
            operation = left.pop()
            if id(operation) not in found:
                found.add(id(operation))
                left += [*(one.op for one in operation.inputs), *operation.control_inputs]
        return not stand_ins.isdisjoint(found)

    def of_inputs(self, number: int, inputs: Sequence[Any]) -> tf.Tensor:
        """Return a value that needs no weights, computed from inputs of the model."""
        computed = self._function.prune(self._function.inputs, self.values[number].tensor)
        return computed(*(one for one in inputs if one is not None))

    def _trace(self, model: keras.Model, signature: Sequence[Any], *given: tf.Tensor) -> list[Any]:
        division, left = self._division, iter(given)
        inputs = [None if one is None else next(left) for one in signature]
        values = {id(tensor): one for tensor, one in zip(division.graph.inputs, inputs, strict=True)}
        for tensor, one in zip(division.graph.inputs, inputs, strict=True):
            self._see(one, -1, -1, (id(tensor), ()), f"the input {tensor.name!r}")
        rows = int(given[0].shape[0])
        stand_ins = [(one, tf.compat.v1.placeholder(one.dtype, one.shape)) for one in _variables(model)]
        self._weights = [stand_in for _, stand_in in stand_ins]
        scope = keras.StatelessScope(state_mapping=stand_ins, collect_losses=True)
        with Tracing(rows) as tracing, scope, graphs.call_of_model(model, training=self._training):
            for part in range(division.parts):
                self._moments.append(self._moment(division.taken_by(part), values))
                self._drawn.append(Counter(tracing.draws))
                for place, call in division.places_of(part):
                    made = call.compute(values, training=self._training)
                    for tensor, one in zip(call.makes, made, strict=True):
                        values[id(tensor)] = one
                    _complete(call, values, rows)
                    maker = f"the layer {call.name!r} ({type(call.operation).__name__})"
                    for tensor in (*call.makes, *call.takes):
                        self._see(values.get(id(tensor)), part, place, (id(tensor), ()), maker)
        self.results = self._moment(division.outputs, values)
        self._drawn.append(Counter(tracing.draws))
        self._ends = [*(self.values[number].tensor for number in self.results.attributes), *scope.losses]
        return []

    def _see(self, value: Any, part: int, place: int, where: tuple[int, tuple[str, ...]], maker: str) -> None:
        """Number a new value of a call, and its attributes."""
        if value is None:
            return
        key, names = where
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.values)
            self.values.append(Value(part, value, maker))  # which keeps the tensor, and so its identity
            self._found.setdefault(place, []).append((self._numbers[id(value)], key, names))
        hung = dict(tensor_attributes.attributes_of(value))
        argument = tensor_attributes.activated(value)
        if argument is not None and self.values[self._numbers[id(value)]].part >= 0:
            hung[_ARGUMENT] = argument[1]
        for name, one in hung.items():
            if tf.is_tensor(one) and (id(one) not in self._numbers or name not in names):
                self._see(one, part, place, (key, (*names, name)), maker)

    def _moment(self, tensors: Iterable[Any], values: Mapping[int, Any]) -> Moment:
        moment = Moment()
        for tensor in tensors:
            value = values.get(id(tensor))
            moment.numbers[id(tensor)] = None if value is None else self._numbers[id(value)]
            if value is not None:
                self._reach(moment, value)
        return moment

    def _reach(self, moment: Moment, value: Any) -> None:
        number = self._numbers[id(value)]
        if number in moment.attributes:
            return
        moment.attributes[number] = attributes = {}
        for name, one in tensor_attributes.attributes_of(value).items():
            attributes[name] = Hung(self._numbers[id(one)]) if tf.is_tensor(one) else one
            if tf.is_tensor(one):
                self._reach(moment, one)
        activated = tensor_attributes.activated(value)
        if activated is not None and self.values[number].part >= 0:
            moment.activations[number] = activated[0], self._numbers[id(activated[1])]
            self._reach(moment, activated[1])

    def _edges(self) -> list[Edge]:
        found = [
            Edge(number, self.values[number].part, part)
            for part, moment in enumerate(self._moments)
            for number in moment.needed
            if self.values[number].part >= 0
        ]
        return sorted(found, key=lambda edge: (edge.number, edge.target))


class Tracing(current_step.Step):
    """The step of a forward pass that is traced and never run: sums over replicas have the shapes of summands."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows=tf.constant(rows), global_rows=tf.constant(rows), weighs_loss=True, index=tf.constant(0))

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        return tensors


def _differentiated(ends: Iterable[Any]) -> set[str]:
    """Return the names of the tensors from which some of the ends are computed, and not by `tf.stop_gradient` alone."""
    found: set[str] = set()
    left = [one for one in ends if tf.is_symbolic_tensor(one) and isinstance(one, tf.Tensor)]
    while left:
        one = left.pop()
        # a loop, as in a recurrent layer, takes its input as a list of tensors, which is a variant
        if (has_fractions(one.dtype) or one.dtype == tf.variant) and one.name not in found:
            found.add(one.name)
            left += [] if one.op.type in ("StopGradient", "PreventGradient") else one.op.inputs
    return found


#: the name under which the argument of an activation is found
_ARGUMENT = "the argument of the operation"


def _reached(tensor: Any, name: str) -> Any:
    if name != _ARGUMENT:
        return getattr(tensor, name)
    activated = tensor_attributes.activated(tensor)
    assert activated is not None
    return activated[1]


def _variables(model: keras.Model) -> list[Any]:
    return list({id(one): one for one in model.variables}.values())


def _complete(call: graphs.Call, values: dict[int, Any], rows: int) -> None:
    """Fill in unknown shapes of a call's results from Keras' specs."""
    unknown = [one for one in call.makes if _is_open(values[id(one)])]
    if not unknown:
        return
    given = {id(one): _symbolic(values.get(id(one))) for one in call.takes}
    try:
        told = call.infer(given)
    except Exception:  # noqa: BLE001 - a layer that computes with text, say, is asked what it said when it was built
        told = list(call.makes)
    for tensor, said in zip(call.makes, told, strict=True):
        if _is_open(values[id(tensor)]):
            # the first axis is the batch's to Keras, and a layer that says None there need not count examples
            shape = tuple(rows if size is None and not axis else size for axis, size in enumerate(said.shape))
            if values[id(tensor)].shape.is_compatible_with(shape):
                values[id(tensor)].set_shape(shape)


def _is_open(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not value.shape.is_fully_defined()


def _symbolic(value: Any) -> Any:
    is_known = isinstance(value, tf.Tensor) and value.shape.rank is not None
    return keras.KerasTensor(tuple(value.shape), keras.backend.standardize_dtype(value.dtype)) if is_known else value


class Links:
    """The transfers of a stage in a step, under unique keys; nothing travels between parts of one process.

    `gradients_sent` has the operations that send gradients to other stages.
    """

    def __init__(self, collective: Collective, name: str) -> None:
        self.gradients_sent: list[tf.Operation] = []
        self._started: list[tf.Operation] = []
        self._collective = collective
        self._name = name
        self._kept: dict[str, tf.Tensor] = {}

    def send_activation(self, tensor: tf.Tensor, edge: Edge, microbatch: int) -> None:
        """Send a tensor that one part has made to the part that takes it."""
        self._send(tensor, self._key("activation", edge, microbatch), edge.target)

    def take_activation(self, edge: Edge, microbatch: int, spec: tf.TensorSpec) -> tf.Tensor:
        """Return a tensor that another part has made."""
        return self._take(spec, self._key("activation", edge, microbatch), edge.source)

    def send_gradient(self, gradient: tf.Tensor, edge: Edge, microbatch: int) -> None:
        """Send the gradient of a tensor that a part has taken back to the part that made the tensor."""
        sent = self._send(gradient, self._key("gradient", edge, microbatch), edge.source)
        if sent is not None:
            self.gradients_sent.append(sent)

    def take_gradient(self, edge: Edge, microbatch: int, spec: tf.TensorSpec) -> tf.Tensor:
        """Return the gradient of a tensor that this part has made for another."""
        return self._take(spec, self._key("gradient", edge, microbatch), edge.target)

    def started(self) -> list[tf.Operation]:
        """Return operations after which all tensors sent since the last call are under way, as far as this is known."""
        started, self._started = self._started, []
        return started

    def _key(self, what: str, edge: Edge, microbatch: int) -> str:
        return f"{self._name} {what} {edge.number} {edge.source} {edge.target} of {microbatch}"

    def _send(self, tensor: tf.Tensor, key: str, part: int) -> tf.Operation | None:
        """Return the operation that sends a tensor; None if the tensor stays here."""
        stage = part % self._collective.size
        if stage == self._collective.rank:
            self._kept[key] = tensor
            return None
        sent = self._collective.send(tensor, key=key, to=stage)
        start = self._collective.start_of(sent)
        self._started += [] if start is None else [start]
        return sent

    def _take(self, spec: tf.TensorSpec, key: str, part: int) -> tf.Tensor:
        stage = part % self._collective.size
        if stage == self._collective.rank:
            return self._kept.pop(key)
        return tf.ensure_shape(self._collective.receive(spec, key=key, source=stage), spec.shape)
