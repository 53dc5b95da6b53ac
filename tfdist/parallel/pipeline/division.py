"""The division of a model into parts: the calls of each part, the tensors between parts, and the places of weights."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.compat.keras.symbolic import graphs, nested_models
from tfdist.errors import ConfigError, UnsupportedError

#: the number of multiplications and additions that take about as long as sending one element
_SENT = 40.0
#: how a model is divided: "auto", the names of the layers that begin the parts 2, 3, ..., or a function that returns
#: these, given the model and the number of parts
Stages = Any
#: the method by which a model names its blocks
METHOD = "pipeline_blocks"


@dataclass(frozen=True)
class _Operation:
    kind: str
    name: str
    takes: tuple[str, ...]
    attributes: tuple[tuple[str, bytes], ...]


class _Traced(keras.Operation):
    """An operation that notes the operations by which a function computes; it reads no weights and runs nothing."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function
        self.operations: list[_Operation] = []

    def call(self, values: Any) -> Any:
        made = self._function(values)
        self.operations = [_noted(one) for one in tf.compat.v1.get_default_graph().get_operations()]
        return made


def has_named(model: keras.Model) -> bool:
    return hasattr(model, METHOD)


def _graph_of_blocks(model: keras.Model) -> graphs.Functional:
    """Return a graph of a model's blocks in a row, which computes the same; it builds layers that are not built yet."""
    named = getattr(model, METHOD)
    first, *blocks = _checked(model, list(named() if callable(named) else named))
    with keras.name_scope(model.name):
        values = first
        for block in blocks:
            values = block(values)
    _require_alike(model, first, blocks)
    return keras.Model(first, values, name=f"{model.name}_blocks")


def _checked(model: keras.Model, named: list[Any]) -> list[Any]:
    is_input = bool(named) and isinstance(named[0], keras.KerasTensor)
    wrong = [one for one in named[1:] if not isinstance(one, keras.layers.Layer)]
    if not is_input or wrong or len(named) < 2:
        found = wrong[0] if wrong else named[0] if named else "nothing"
        raise ConfigError(
            f"{METHOD} of the model {model.name!r} ({type(model).__name__}) names {type(found).__name__} where "
            f"{'a layer' if wrong else 'an input, and layers behind it,'} must stand. Return what a keras.Sequential "
            "takes: [keras.Input((64,)), self.first, *self.blocks, self.last]."
        )
    return named


def _require_alike(model: keras.Model, first: keras.KerasTensor, blocks: list[keras.layers.Layer]) -> None:
    def through(values: Any) -> Any:
        for block in blocks:
            values = block(values)
        return values

    takes_training = "training" in inspect.signature(model.call).parameters
    for training in (True, False):
        own: dict[str, Any] = {"training": training} if takes_training else {}
        with graphs.call_of_model(model, training=training):
            try:
                has = _operations(functools.partial(model.call, **own), first)
            except Exception as error:
                raise UnsupportedError(
                    f"the model {model.name!r} names its blocks, and its call cannot be compared with them: given the "
                    f"input that {METHOD} begins with, it raised {type(error).__name__}: {error}"
                ) from error
            wanted = _operations(through, first)
        if has != wanted:
            shorter = min(len(has), len(wanted))
            place = next((n for n in range(shorter) if has[n] != wanted[n]), shorter)
            raise UnsupportedError(
                f"the model {model.name!r} names the blocks {', '.join(block.name for block in blocks)}, and its call "
                f"does not compute these one after the other: where its blocks have {_shown(wanted, place)}, it has "
                f"{_shown(has, place)} (training={training}). Move what stands between blocks into layers, and name "
                "all of them in their order.",
                name=model.name,
                received=_shown(has, place),
            )


def _operations(function: Callable[[Any], Any], first: keras.KerasTensor) -> list[_Operation]:
    traced = _Traced(function)
    traced.compute_output_spec(first)
    return traced.operations


def _noted(operation: Any) -> _Operation:
    given = {name: value for name, value in operation.node_def.attr.items() if not value.HasField("func")}
    return _Operation(
        kind=operation.type,
        name=operation.name,
        takes=(*(one.name for one in operation.inputs), *(one.name for one in operation.control_inputs)),
        attributes=tuple((name, value.SerializeToString(deterministic=True)) for name, value in sorted(given.items())),
    )


def _shown(operations: list[_Operation], place: int) -> str:
    return f"{operations[place].kind} ({operations[place].name})" if place < len(operations) else "nothing more"


class Division:
    """A Sequential or functional model, or one that names its blocks, cut into parts.

    Attributes:
        calls: the calls of the graph and of nested models, in Keras' order.
        outputs: the symbolic tensors that the model returns.
        part_of: the index of the part of each call.
    """

    def __init__(self, model: keras.Model, parts: int, stages: Stages = "auto") -> None:
        self.graph = graph_of(model)
        flat = nested_models.flattened(self.graph)
        self.calls, self.outputs = flat.calls, flat.outputs
        #: the call that compares rows of a batch, see `whole_batches.comparing_call`; None until it is looked for
        self.comparing: str | None = None
        self.parts = parts
        beginnings = beginnings_of(model, self.calls, parts, stages)
        #: the names of the layers that begin the parts 2, 3, ...
        self.stages = tuple(self.calls[place].name for place in beginnings if place < len(self.calls))
        self.part_of = [sum(begin <= place for begin in beginnings) for place in range(len(self.calls))]

    def calls_of(self, part: int) -> list[graphs.Call]:
        """Return the calls of a part, in order."""
        return [call for _, call in self.places_of(part)]

    def places_of(self, part: int) -> list[tuple[int, graphs.Call]]:
        """Return the calls of a part, in order, each with its place among all calls."""
        return [(place, call) for place, call in enumerate(self.calls) if self.part_of[place] == part]

    def taken_by(self, part: int) -> list[Any]:
        """Return the symbolic tensors that a part takes from others; the last part takes the model's results, too."""
        calls = self.calls_of(part)
        made = {id(tensor) for call in calls for tensor in call.makes}
        taken = [tensor for call in calls for tensor in call.takes]
        taken += self.outputs if part == self.parts - 1 else []
        return [tensor for tensor in taken if id(tensor) not in made]

    def layers_of(self, part: int) -> list[keras.layers.Layer]:
        """Return the layers that a part calls, each once."""
        found = {id(call.operation): call.operation for call in self.calls_of(part)}
        return [one for one in found.values() if isinstance(one, keras.layers.Layer)]

    def variables_of(self, part: int) -> list[keras.Variable]:
        """Return the variables of the layers that a part calls, each once."""
        found = {id(one): one for layer in self.layers_of(part) for one in layer.variables}
        return list(found.values())

    def needs_whole_batch(self, *, losses_are_told: bool) -> str | None:
        """Return the name of something that needs the whole batch in a forward pass, as a sentence's subject, or None.

        Statistics of a whole batch need its last example for the first result. Losses and states that a user's layer
        adds may be means, sums, or neither, which no stage can find out.
        """
        every = [one for part in range(self.parts) for own in self.layers_of(part) for one in keras_trainer.layers(own)]
        for layer in every:
            if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized and layer.trainable:
                return f"the layer {layer.name!r}, which normalizes with statistics of the whole batch,"
        for layer in every:
            if not losses_are_told and layer_methods.may_add_losses(layer):
                return f"the layer {layer.name!r}, which adds a loss (a mean or a sum, no stage can tell),"
            if keras_variables.has_own_states(layer):
                return f"the layer {layer.name!r}, which keeps a state of its own,"
        return None

    def holders(self, stages: int) -> dict[int, tuple[int, ...]]:
        """Map each variable's identity to the stages that compute with it; the first stage has unused variables."""
        found: dict[int, set[int]] = {}
        for part in range(self.parts):
            for variable in self.variables_of(part):
                found.setdefault(id(variable), set()).add(part % stages)
        return {key: tuple(sorted(held)) for key, held in found.items()}


def graph_of(model: keras.Model) -> graphs.Functional:
    graph = graphs.graph_of(model)
    is_own = graph is not None and type(model).call not in (graphs.Functional.call, keras.Sequential.call)
    if has_named(model) and (graph is None or is_own):
        return _graph_of_blocks(model)
    if graph is None or is_own:
        raise UnsupportedError(
            f"the model {model.name!r} ({type(model).__name__}) has a call of its own, which does not show "
            "where it may be cut. Let it name its blocks, by a method pipeline_blocks(self) that returns "
            "[keras.Input((64,)), self.first, *self.others] (its input, and the layers that its call calls one after "
            "the other), or make it a keras.Sequential with an Input, or a functional model.",
            name=model.name,
            received=type(model).__name__,
        )
    return graph


def beginnings_of(model: keras.Model, calls: Sequence[graphs.Call], parts: int, stages: Stages) -> list[int]:
    """Return the places of the calls that begin the parts 2, 3, ...; parts without a call begin behind the last one."""
    if isinstance(stages, str) and stages == "auto" and len(calls) < parts:
        return [min(place, len(calls)) for place in range(1, parts)]
    if callable(stages):
        stages = stages(model, parts)
    if isinstance(stages, str) and stages == "auto":
        return balanced([cost_of(call) for call in calls], parts, [_SENT * sent for sent in crossing(calls)])
    names = [call.name for call in calls]
    if isinstance(stages, str) or not all(isinstance(name, str) for name in stages):
        raise ConfigError(
            f"stages is {validation.shown(stages)}; it must be a number, 'auto', or names of layers that begin the "
            f"second and later stages, such as ('block_2',). The layers are {', '.join(names)}."
        )
    given = list(stages)
    if len(given) != parts - 1:
        raise ConfigError(
            f"stages names {validation.counted(len(given), 'layer')} ({', '.join(given)}), and {parts} parts begin "
            f"with {parts - 1}: the first part begins with the model."
        )
    places = []
    for name in given:
        found = _places(name, names)
        if not found:
            raise ConfigError(
                f"stages names {name!r}, which the model {model.name!r} does not call."
                f"{validation.nearest(name, names)} Its layers are {', '.join(names)}.",
                name="stages",
                received=name,
            )
        if len({names[place] for place in found}) > 1 and not names[found[0]].startswith(f"{name}/"):
            raise ConfigError(
                f"stages names {name!r}, and the model {model.name!r} has several layers of that name. Give the whole "
                f"path of one: {', '.join(dict.fromkeys(names[place] for place in found))}."
            )
        places.append(found[0])
    if places != sorted(set(places)) or 0 in places:
        raise ConfigError(
            f"stages names {', '.join(given)}, which the model calls as numbers {', '.join(map(str, places))} of "
            f"{len(names)}; they must come in the order of the model, behind its first layer.",
            name="stages",
            received=", ".join(given),
        )
    return places


def _places(name: str, names: Sequence[str]) -> list[int]:
    for matches in (name.__eq__, lambda one: one.startswith(f"{name}/"), lambda one: one.endswith(f"/{name}")):
        found = [place for place, one in enumerate(names) if matches(one)]
        if found:
            return found
    return []


def cost_of(call: graphs.Call) -> float:
    """Return the approximate cost of a call: multiplications with its weights, and the elements that it makes."""
    elements = sum(_elements(tensor.shape[1:]) for tensor in call.makes)
    if not isinstance(call.operation, keras.layers.Layer):
        return elements
    weights = sum(_elements(weight.shape) for weight in call.operation.weights)
    if isinstance(call.operation, keras.layers.Embedding):
        return elements
    # a weight is used once at each place but the channels'
    places = max((_elements(tensor.shape[1:-1]) for tensor in call.makes), default=1)
    return 2.0 * weights * places + elements


def crossing(calls: Sequence[graphs.Call]) -> list[float]:
    """Return for each call the number of elements, per example, that cross a cut before it."""
    ends = {id(tensor): place for place, call in enumerate(calls) for tensor in call.takes}
    sizes = [0.0] * len(calls)
    for place, call in enumerate(calls):
        for tensor in call.makes:
            for later in range(place + 1, ends.get(id(tensor), place) + 1):
                sizes[later] += _elements(tensor.shape[1:])
    return sizes


def balanced(costs: Sequence[float], parts: int, cuts: Sequence[float] | None = None) -> list[int]:
    """Return the places where parts 2, 3, ... begin, so that the most expensive part is as cheap as possible.

    Example:
        >>> balanced([1, 1, 1, 5, 1, 1], 3)
        [3, 4]
        >>> balanced([1, 1, 1, 1, 1], 2, [0, 0, 9, 1, 9])
        [3]
    """
    count = len(costs)
    sums, cut = np.cumsum([0.0, *costs]), np.array(cuts or [0.0] * count)
    # best[i]: the dearest of the parts so far, which have the first i calls; begins[p][i]: where the last one begins
    best, begins = sums, list[list[int]]()
    for part in range(1, parts):
        row, places = np.full(count + 1, np.inf), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            dearest = np.maximum(best[part:end], sums[end] - sums[part:end] + cut[part:end])
            places[end] = part + int(dearest.argmin())
            row[end] = dearest[places[end] - part]
        best = row
        begins.append(places)
    found, end = [], count
    for places in reversed(begins):
        end = places[end]
        found.append(end)
    return found[::-1]


def _elements(shape: Sequence[Any]) -> float:
    count = 1.0
    for size in shape:
        count *= size or 1
    return count
