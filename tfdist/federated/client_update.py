"""The update that a client sends back after training: named arrays, the number of its examples, and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Update:
    """The difference that a client's training made, with its number of examples and its metrics.

    Arrays may hold NaN or infinity: an aggregator decides how to treat them.

    Args:
        arrays: the float arrays by name: the client's weights minus the weights of the round, and the algorithm's own
            arrays.
            The names and shapes of all clients are those of the round.
        examples: the number of examples on which the client trained, at least 1.
        metrics: the metrics that the client measured, by name, such as its loss.

    Raises:
        ConfigError: an array is not of floats, or examples is below 1.

    Example:
        >>> Update({"kernel": np.ones((2, 2), np.float32)}, examples=20, metrics={"loss": 0.5}).examples
        20
    """

    arrays: Arrays
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validation.integer("examples", self.examples, minimum=1)
        for name, array in self.arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                what = getattr(array, "dtype", type(array).__name__)
                raise ConfigTypeError(
                    f"the array {name!r} of an update is {what}; it must be a NumPy array of floats.",
                    name=name,
                    received=str(what),
                )


def is_finite(update: Update) -> bool:
    """Return whether an update has no NaN and no infinite number."""
    return all(bool(np.isfinite(array).all()) for array in update.arrays.values())


def require_same_shapes(arrays: Arrays, like: Arrays) -> None:
    """Refuse arrays whose names or shapes differ from those of the round."""
    if arrays.keys() != like.keys():
        wrong = sorted(arrays.keys() ^ like.keys())
        raise ConfigError(
            f"an update has {len(arrays)} arrays and the round {len(like)}; {wrong[0]!r} is in one of them "
            f"only. Server and client must run the same application.",
            name=wrong[0],
            received=sorted(arrays),
        )
    for name, array in like.items():
        if arrays[name].shape != array.shape:
            raise ConfigError(
                f"the array {name!r} of an update has the shape {arrays[name].shape}; the round's has "
                f"{array.shape}. Server and client must run the same application.",
                name=name,
                received=arrays[name].shape,
            )
