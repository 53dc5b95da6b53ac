"""The values of one feature for all examples, and the labels that an order uses. No TensorFlow."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.data.examples.checked_examples import Examples, spans
from tfdist.data.format.schema import TEXT, Feature
from tfdist.errors import ConfigError


def values_of(examples: Examples, name: str) -> Any:
    """Return a feature of all examples: an array of numbers, or of objects where it is text or a list of any length."""
    feature = examples.schema[name]
    if feature.dtype != TEXT and feature.size is not None:
        return examples.numbers(name)
    found = np.empty(len(examples), object)
    for span in spans(len(examples)):
        for number, example in zip(span, examples.each(span), strict=True):
            found[number] = example[name]
    return found


def has_classes(feature: Feature | None) -> bool:
    """Return whether a feature may say which class or classes an example has."""
    if feature is None or len(feature.shape) > 1 or feature.is_image:
        return False
    return feature.dtype == TEXT or feature.shape not in ((), (None,)) or not feature.dtype.startswith("float")


def label_columns(examples: Examples, names: Sequence[str]) -> list[Any]:
    """Return the values of labels for all examples."""
    for name in names:
        if not has_classes(examples.schema.get(name)):
            raise ConfigError(
                f"the label {name!r} is {examples.schema.get(name, 'no feature')}; an order needs one integer or text, "
                "a list of them, or an array with a 0 or 1 for each class. There are "
                f"{', '.join(map(repr, examples.schema))}.",
                name="label",
                received=name,
            )
    return [values_of(examples, name) for name in names]
