"""The graph of a subclassed model that names its blocks, called one after the other."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.symbolic import graphs
from tfdist.errors import ConfigError, UnsupportedError

#: the method by which a model names its blocks
METHOD = "pipeline_blocks"


@dataclass(frozen=True)
class _Operation:
    kind: str
    name: str
    takes: tuple[str, ...]
    attributes: tuple[tuple[str, bytes], ...]


class _Traced(keras.Operation):
    """Notes the operations by which a function computes; weights are not read, and nothing is run."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function
        self.operations: list[_Operation] = []

    def call(self, values: Any) -> Any:
        made = self._function(values)
        self.operations = [_noted(one) for one in tf.compat.v1.get_default_graph().get_operations()]
        return made


def has_named(model: keras.Model) -> bool:
    """Return whether a model names its blocks."""
    return hasattr(model, METHOD)


def graph_of(model: keras.Model) -> graphs.Functional:
    """Return the graph of a model's blocks in a row, which computes the same; layers without weights get them."""
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
