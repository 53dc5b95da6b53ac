"""Roles of features: inputs, label and sample weight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import validation
from tfdist.data.format.schema import TEXT
from tfdist.errors import ConfigError, ConfigTypeError


@dataclass(frozen=True)
class Roles:
    """What features are for `fit`.

    Attributes:
        label: the feature that is y; None for x alone.
        inputs: the features that are x, as a dict unless it is one; none: all others.
        weight: the feature that is the weight, if there is one.
        origin: what gives the features, for messages: "the examples have", "decode returns".
    """

    label: str | None
    inputs: Sequence[str]
    weight: str | None
    origin: str

    def require(self, features: Mapping[str, Any]) -> None:
        """Refuse roles that these features, which have a dtype, cannot have."""
        named = [("label", self.label), *(("inputs", name) for name in self.inputs), ("weight", self.weight)]
        there = ", ".join(map(repr, features))
        for argument, name in named:
            if name is not None and name not in features:
                way = " Return it too, or name one of these." if self.origin.endswith("returns") else ""
                raise ConfigError(
                    f"{argument} names the feature {name!r}; {self.origin} {there}.{way}", name=argument, received=name
                )
        if self.weight is not None and getattr(features[self.weight], "dtype", TEXT) == TEXT:
            raise ConfigError(
                f"weight names the feature {self.weight!r}, which is no number; a weight must be one.",
                name="weight",
                received=self.weight,
            )

    def element(self, found: Mapping[str, Any], padding: tf.Tensor | None) -> Any:
        """Return (x, y), (x, y, weight) or x."""
        self.require(found)
        names = list(self.inputs) or [name for name in found if name not in (self.label, self.weight)]
        x = found[names[0]] if len(names) == 1 else {name: found[name] for name in names}
        if self.label is None:
            return x
        weights = None if self.weight is None else tf.cast(found[self.weight], tf.float32)
        if padding is not None:
            weights = padding if weights is None else weights * padding
        return (x, found[self.label]) if weights is None else (x, found[self.label], weights)


def roles(label: Any, inputs: Any, weight: Any, *, origin: str) -> Roles:
    """Return the roles that a caller names."""
    if isinstance(label, (list, tuple, set, Mapping)):
        raise ConfigError(
            f"label is {validation.shown(label)}; it must be the name of one feature. Let decode return several labels "
            "as one, a dict by the names of the model's outputs: {**example, 'label': {'a': ..., 'b': ...}}.",
            name="label",
            received=validation.shown(label),
        )
    if isinstance(inputs, bytes) or not isinstance(inputs, (str, Sequence, set, frozenset)):
        raise ConfigTypeError(
            f"inputs is {validation.shown(inputs)}; it must be a feature's name, or a list of names.",
            name="inputs",
            received=validation.shown(inputs),
        )
    names = [validation.text("inputs", name) for name in ([inputs] if isinstance(inputs, str) else inputs)]
    found = Roles(
        None if label is None else validation.text("label", label),
        names,
        None if weight is None else validation.text("weight", weight),
        origin,
    )
    if found.weight is not None and found.label is None:
        raise ConfigError(
            f"weight is {weight!r}, and without a label there is nothing to weigh. Name the label, or leave weight "
            "out.",
            name="weight",
            received=weight,
        )
    return found
