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
    """The difference that a client's training made, and what it is worth.

    Arrays may hold NaN or infinity: an aggregator decides what becomes of them.

    Args:
        arrays: names to float arrays: the client's weights minus the weights of the round, and what its algorithm adds.
            The names and shapes of all clients are those of the round.
        examples: how many examples the client trained on, at least 1.
        metrics: names to numbers that the client measured, such as its loss.

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
    """Whether no number of an update is NaN or infinite."""
    return all(bool(np.isfinite(array).all()) for array in update.arrays.values())


def require_alike(update: Update, like: Arrays) -> None:
    """Refuse an update whose names or shapes are not those of the round."""
    if update.arrays.keys() != like.keys():
        wrong = sorted(update.arrays.keys() ^ like.keys())
        raise ConfigError(
            f"an update has {len(update.arrays)} arrays and the round {len(like)}; {wrong[0]!r} is in one of them "
            f"only. Server and client must run the same application.",
            name=wrong[0],
            received=sorted(update.arrays),
        )
    for name, array in like.items():
        if update.arrays[name].shape != array.shape:
            raise ConfigError(
                f"the array {name!r} of an update has the shape {update.arrays[name].shape}; the round's has "
                f"{array.shape}. Server and client must run the same application.",
                name=name,
                received=update.arrays[name].shape,
            )
