"""The protocol of federated algorithms, and the state that a server keeps for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.federated.client_update import Arrays

# prefixes of the names of arrays
WEIGHTS = "weights/"  # trained by gradients
STATISTICS = "statistics/"  # moved by training otherwise, such as the moving means of batch normalization
CONTROL = "control/"  # control variates, one for each array of WEIGHTS
Weighting = Literal["examples", "uniform"]


@dataclass(frozen=True)
class ServerState:
    """The weights of a round, and the state that the algorithm keeps between rounds."""

    weights: Arrays
    slots: Arrays = field(default_factory=dict)


class Algorithm(Protocol):
    """The work of clients in a round, and the effect of their aggregate on the weights: a value without state."""

    @property
    def epochs(self) -> int:
        """The number of epochs over a client's data in a round."""

    @property
    def batch_size(self) -> int | None:
        """The batch size of a client; None: all of its examples at once."""

    @property
    def proximal(self) -> float | None:
        """The factor of the squared distance from the round's weights in a client's loss; None without it."""
        return None

    @property
    def has_controls(self) -> bool:
        """Whether each client keeps control variates, which correct its gradients."""
        return False

    def weight(self, examples: int) -> float:
        """Return the weight of an update from a client with this number of examples."""

    def begin(self, weights: Arrays) -> ServerState:
        """Return the state before the first round."""

    def update(self, state: ServerState, aggregate: Arrays, *, part: float) -> ServerState:
        """Return the state after a round.

        Args:
            state: the state before the round.
            aggregate: the aggregate of the clients' updates.
            part: the fraction of all clients whose updates were used.
        """


@dataclass(frozen=True, kw_only=True)
class Participation:
    """The selection of the clients of a round, and the time for which the round waits for them.

    Args:
        fraction: the fraction of all clients whose updates end a round; at least one client.
        minimum: the number of updates with which a round can end at its deadline.
        spare: the number of additional clients to ask, as a fraction of those, so that no round waits for slow ones.
        deadline_seconds: the deadline for training and for evaluation, in seconds.
        attempts: the number of attempts at a round; with fewer updates than `minimum`, other clients try it again.
        evaluate_every: the number of rounds between two evaluations; the last round is always evaluated.
        evaluate_on: the test data of the server, the clients' own data, or nothing.

    Raises:
        ConfigError: a number is out of bounds.
    """

    fraction: float = 1.0
    minimum: int = 1
    spare: float = 0.0
    deadline_seconds: float = 600.0
    attempts: int = 5
    evaluate_every: int = 1
    evaluate_on: Literal["server", "clients", "nothing"] = "server"

    def __post_init__(self) -> None:
        validation.number("fraction", self.fraction, above=0, maximum=1)
        validation.number("spare", self.spare, minimum=0)
        validation.number("deadline_seconds", self.deadline_seconds, above=0)
        for name in ("minimum", "attempts", "evaluate_every"):
            validation.integer(name, getattr(self, name), minimum=1)
        validation.one_of("evaluate_on", self.evaluate_on, ("server", "clients", "nothing"))


def arrays_of_clients(algorithm: Algorithm, state: ServerState) -> Arrays:
    """Return the arrays that clients get, and whose changes they send: weights and, if they have any, controls."""
    return {**state.weights, **(state.slots if algorithm.has_controls else {})}


def moved(weights: Arrays, steps: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the weights after float64 steps, in the dtypes of the weights."""
    return {
        name: (np.asarray(array, np.float64) + steps[name]).astype(array.dtype) if name in steps else array
        for name, array in weights.items()
    }
