"""Lists of numbers of many examples, read without the other features. Loads no TensorFlow."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.checked_examples import Examples, payloads_of
from tfdist.data.examples.computed_examples import Computed
from tfdist.data.examples.joined_examples import Joined
from tfdist.data.format import example

_Ids = NDArray[np.int64]


def lists_of(examples: Examples, name: str, ids: _Ids) -> list[NDArray[Any]]:
    """Return the lists of a feature in these examples."""
    if isinstance(examples, Computed):
        return [np.asarray(value) for value in examples.columns(ids, [name])[name]]
    if isinstance(examples, Joined):
        found: list[Any] = [None] * len(ids)
        for place, here in examples.by_part(ids):
            part = lists_of(examples.parts[place], name, ids[here] - examples.firsts[place])
            for at, value in zip(here.tolist(), part, strict=True):
                found[at] = value
        return found
    feature, payloads = examples.schema[name], list(payloads_of(examples, ids))
    together: list[NDArray[np.int64] | None] = [None] * len(payloads)
    if feature.dtype == feature.encoding == "int64" and feature.size is None:
        together = example.integer_lists(payloads, name)
    return [
        np.asarray(example.value(name, feature, example.parse(payload))) if values is None else values
        for payload, values in zip(payloads, together, strict=True)
    ]
