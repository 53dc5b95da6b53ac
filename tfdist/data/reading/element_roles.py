"""The roles of features in `fit`: x, y and the sample weight; and lists that are padded to one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.data.examples.fetch import Failures
from tfdist.data.format.schema import TEXT
from tfdist.errors import ConfigError, ConfigTypeError

#: the one feature of a function that returned (x, y) or (x, y, weight); no feature of a schema can have this name
PAIR = ""
Pads = Mapping[str, tuple[list[int], Any]]  # lengths in rising order, and the value that fills


@dataclass(frozen=True)
class Roles:
    """The roles of features in `fit`: y, x (empty: all others), and weight.

    ``label`` is one name, or several in a tuple. ``origin`` is where the features come from, for messages: "the
    examples have", "decode returns". ``asked`` is the first role that the user named, if any.
    """

    label: str | tuple[str, ...] | None
    inputs: Sequence[str]
    weight: str | None
    origin: str
    asked: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The features that are y."""
        return self.label if isinstance(self.label, tuple) else () if self.label is None else (self.label,)

    def require(self, features: Mapping[str, Any]) -> None:
        """Refuse roles that do not suit these features, which have dtypes."""
        named = [("label", name) for name in self.labels]
        named += [*(("inputs", name) for name in self.inputs), *([("weight", self.weight)] if self.weight else [])]
        there = ", ".join(map(repr, features))
        for argument, name in named:
            if name not in features:
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
        if PAIR in found:
            return self._pair(found[PAIR], padding)
        self.require(found)
        names = list(self.inputs) or [name for name in found if name not in (*self.labels, self.weight)]
        x = found[names[0]] if len(names) == 1 else {name: found[name] for name in names}
        if self.label is None:
            if padding is not None:
                raise _without_label(f"{self.origin} a dict")
            return x
        y = {name: found[name] for name in self.label} if isinstance(self.label, tuple) else found[self.label]
        weights = _weights(None if self.weight is None else found[self.weight], padding)
        return (x, y) if weights is None else (x, y, weights)

    def _pair(self, found: Mapping[str, Any], padding: tf.Tensor | None) -> Any:
        if self.asked is not None:
            raise ConfigError(
                f"{self.origin} a tuple, which says itself what x, y and weight are, and {self.asked} is given, too. "
                f"Leave {self.asked} out, or return a dict of features.",
                name=self.asked,
            )
        weights = _weights(found.get("weight"), padding)
        return (found["x"], found["y"]) if weights is None else (found["x"], found["y"], weights)


def _weights(given: Any, padding: tf.Tensor | None) -> tf.Tensor | None:
    if given is None:
        return padding
    weights = tf.cast(given, tf.float32)
    return weights if padding is None else weights * tf.reshape(padding, [-1, *([1] * (weights.shape.rank - 1))])


def _without_label(origin: str) -> ConfigError:
    return ConfigError(
        f"tail='pad' and on_corrupt='skip' give some examples the weight 0, and {origin} without a label, so there is "
        "no weight. Name the label, return (x, y), or pass tail='keep' or 'drop' and on_corrupt='raise'.",
        name="tail",
        received="pad",
    )


def roles(label: Any, inputs: Any, weight: Any, *, origin: str, default_label: str | None = None) -> Roles:
    """Return the roles that a user gave; ``default_label`` is the label that the directory names."""
    if isinstance(label, (set, Mapping)) or (isinstance(label, (list, tuple)) and len(set(label)) < max(1, len(label))):
        raise validation.mismatch(
            "label",
            label,
            "the name of one feature, or a list of different names. Let decode return other structures: (x, y).",
        )
    if isinstance(inputs, bytes) or not isinstance(inputs, (str, Sequence, set, frozenset)):
        raise validation.mismatch("inputs", inputs, "a feature's name, or a list of names.", kind=ConfigTypeError)
    names = [validation.text("inputs", name) for name in ([inputs] if isinstance(inputs, str) else inputs)]
    chosen: str | tuple[str, ...] | None = default_label
    if isinstance(label, (list, tuple)):
        chosen = tuple(validation.text("label", name) for name in label)
    elif label is not None:
        chosen = validation.text("label", label)
    given = {"label": label is not None, "inputs": bool(names), "weight": weight is not None}
    found = Roles(
        chosen,
        names,
        None if weight is None else validation.text("weight", weight),
        origin,
        next((name for name, is_given in given.items() if is_given), None),
    )
    if found.weight is not None and found.label is None:
        raise ConfigError(
            f"weight is {weight!r}, and without a label there is nothing to weigh. Name the label, or leave weight "
            "out.",
            name="weight",
            received=weight,
        )
    return found


def pads_of(pad: Any) -> Pads:
    """Check and normalize a user's ``pad``: a length, or (length, value), by feature."""
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise validation.mismatch("pad", pad, 'lengths by feature: {"boxes": 100}.', kind=ConfigTypeError)
    found = {}
    for name, given in pad.items():
        length, value = given if isinstance(given, tuple) and len(given) == 2 else (given, 0)
        lengths = length if isinstance(length, list) and length else [length]
        found[name] = (sorted(validation.integer(f"pad of {name}", one, minimum=1) for one in lengths), value)
    return found


def padded(found: Mapping[str, Any], pads: Pads, failures: Failures) -> dict[str, Any]:
    """Return the features of a batch, with these lists padded to one length; a longer list is an error."""
    features = dict(found)
    for name, (lengths, value) in pads.items():
        given = features.get(name)
        if not isinstance(given, tf.RaggedTensor):
            what = "is missing" if given is None else "has one size in all examples"
            lists = [key for key, one in found.items() if isinstance(one, tf.RaggedTensor)]
            raise ConfigError(
                f"pad names the feature {name!r}, which {what}; it must be a list of any length. Such lists are: "
                f"{', '.join(map(repr, lists)) or 'none'}.",
                name="pad",
                received=name,
            )

        def room(longest: Any, name: str = name, lengths: list[int] = lengths) -> np.int64:
            if longest > lengths[-1]:
                raise ConfigError(
                    f"an example has {longest} values of {name!r}, and pad gives room for {lengths[-1]}. Pass a larger "
                    "length, or cut them in decode.",
                    name="pad",
                    received=int(longest),
                )
            return np.int64(next(length for length in lengths if longest <= length))

        # an empty batch has no longest list
        longest = tf.reduce_max(tf.concat([[0], tf.cast(given.row_lengths(), tf.int32)], 0))
        length = tf.numpy_function(failures.noted(room), [longest], tf.int64)
        is_text = given.dtype == tf.string
        if given.dtype.is_integer:
            validation.integer(f"pad of {name}", value, minimum=given.dtype.min, maximum=given.dtype.max)
        filler = tf.constant("" if value == 0 else value) if is_text else tf.cast(value, given.dtype)
        shape = tf.concat([[given.nrows()], [length], tf.constant(given.shape[2:].as_list(), tf.int64)], 0)
        features[name] = given.to_tensor(filler, shape=shape)
        features[name].set_shape([None, lengths[0] if len(lengths) == 1 else None, *given.shape[2:]])
    return features
