"""Settings of secure aggregation: the code of values as integers, and the clients that may be lost or collude."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.federated.aggregation import Aggregator, Mean
from tfdist.federated.algorithms.algorithm import Algorithm
from tfdist.federated.client_update import Arrays

if TYPE_CHECKING:
    from tfdist.federated.secure.fixed_point import FixedPoint
    from tfdist.federated.secure.masking_plan import MaskingPlan

_UNCAPPED = 1 << 40


@dataclass(frozen=True, kw_only=True)
class SecureSums:
    """Settings of secure aggregation, by which the server learns the sum of a round's updates, and no single one.

    Args:
        clip: the largest magnitude of a change; larger values are clipped, and counted in `clipped_values` of a round.
        value_bits: the bits of a value. With a weight of w bits and n clients, value_bits + w + log2(n) fit into
            `bits`.
        bits: the bits of the words that are added: 32, or 64 for finer values and larger weights.
        threshold: the fraction of a round's clients, at least half; more than these must stay to its end, or else there
            is no sum.
        colluding: the fraction of the clients that may give the server what they see, 0 to 0.5; None: all clients mask
            against all others, which also withstands a server that chooses the neighbours of clients.
        lost: the fraction of the clients that may be lost in a round.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> SecureSums(clip=0.5).value_bits
        16
    """

    clip: float = 1.0
    value_bits: int = 16
    bits: Literal[32, 64] = 32
    threshold: float = 2 / 3
    colluding: float | None = 0.1
    lost: float = 0.1

    def __post_init__(self) -> None:
        validation.number("clip", self.clip, above=0.0)
        validation.integer("value_bits", self.value_bits, minimum=2, maximum=53)
        validation.one_of("bits", self.bits, (32, 64))
        validation.number("threshold", self.threshold, minimum=0.5, maximum=0.999)
        validation.number("lost", self.lost, minimum=0.0, maximum=0.5)
        if self.colluding is not None:
            validation.number("colluding", self.colluding, minimum=0.0, maximum=0.5)


def code_of(sums: SecureSums, *, largest_weight: int, clients: int) -> "FixedPoint":
    """Return the code of values as integers; raise ConfigError if a sum could overflow."""
    from tfdist.federated.secure.fixed_point import FixedPoint

    return FixedPoint(
        clip=sums.clip, value_bits=sums.value_bits, largest_weight=largest_weight, clients=clients, bits=sums.bits
    )


def plan_of(sums: SecureSums, clients: Iterable[str], *, session: bytes, length: int) -> "MaskingPlan":
    """Return the plan of one sum, which server and clients make independently; raise for fewer than three clients."""
    from tfdist.federated.secure.masking_plan import MaskingPlan

    names = tuple(clients)
    return MaskingPlan.of(
        names,
        session=session,
        length=length,
        bits=sums.bits,
        threshold=min(int(len(names) * sums.threshold) + 1, len(names)),
        colluding=sums.colluding,
        lost=sums.lost,
    )


def largest_weight(algorithm: Algorithm, aggregator: Aggregator) -> int:
    """Return the largest weight of a client; raise if a sum of integers cannot have these weights and this rule."""
    if not isinstance(aggregator, Mean):
        raise ConfigError(
            f"aggregator is {type(aggregator).__name__}, which compares single updates; under secure aggregation the "
            "server has none. Use Mean(), or no secure aggregation.",
            name="aggregator",
            received=type(aggregator).__name__,
        )
    weight = algorithm.weight(_UNCAPPED)
    if weight >= _UNCAPPED or weight != int(weight):
        raise ConfigError(
            f"a client may count {weight:g}; secure aggregation needs whole weights with a bound. Set most_examples of "
            'the algorithm, such as 500, or weighting="uniform".',
            name="most_examples",
            received=weight,
        )
    return int(weight)


@dataclass(frozen=True)
class VectorLayout:
    """The layout of named arrays in one vector, by the order of their names."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, arrays: Arrays) -> "VectorLayout":
        return cls({name: arrays[name].shape for name in sorted(arrays)})

    @property
    def length(self) -> int:
        """The length of the vector."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes.values())

    @property
    def words(self) -> int:
        """The length of the masked vector, which ends with the number of values that were clipped."""
        return self.length + 1

    def joined(self, arrays: Arrays) -> NDArray[Any]:
        """Return the arrays as one vector; float64 as soon as one array is."""
        wide = np.float64 if any(arrays[name].dtype == np.float64 for name in self.shapes) else np.float32
        return np.concatenate([arrays[name].reshape(-1).astype(wide, copy=False) for name in self.shapes])

    def parts(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a vector."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=np.int64))
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found
