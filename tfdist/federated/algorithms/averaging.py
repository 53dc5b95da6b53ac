"""Federated averaging, with or without server momentum, and FedProx."""

from dataclasses import dataclass

import numpy as np

from tfdist import validation
from tfdist.federated.algorithms.algorithm import WEIGHTS, Algorithm, ServerState, Weighting, moved
from tfdist.federated.client_update import Arrays

_MOMENTUM = "momentum/"


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging: clients train for some epochs, and the server applies the mean of their changes.

    Args:
        epochs: the number of epochs over a client's data in a round.
        batch_size: the batch size of a client; None: all of its examples at once.
        weighting: the weight of a client: its number of `examples`, or the same for all clients (`"uniform"`).
        most_examples: the largest number of examples by which a client is weighted. Clients report their number, so an
            uncapped number can be abused.
        server_learning_rate: the factor of the mean change; 1 is the mean of the weights.
        server_momentum: the momentum of the mean changes of all rounds so far (FedAvgM); 0: no momentum.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> FedAvg(epochs=2, most_examples=100).weight(5000)
        100.0
    """

    epochs: int = 1
    batch_size: int | None = 32
    weighting: Weighting = "examples"
    most_examples: int | None = None
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0

    def __post_init__(self) -> None:
        check_local(self.epochs, self.batch_size, self.weighting, self.most_examples)
        validation.number("server_learning_rate", self.server_learning_rate, above=0)
        validation.number("server_momentum", self.server_momentum, minimum=0, maximum=1)

    def weight(self, examples: int) -> float:
        """Return the weight of a client with this number of examples."""
        return weight_of(examples, self.weighting, self.most_examples)

    def begin(self, weights: Arrays) -> ServerState:
        """Return the state before the first round."""
        if not self.server_momentum:
            return ServerState(weights)
        names = [name for name in weights if name.startswith(WEIGHTS)]
        return ServerState(weights, {_MOMENTUM + name: np.zeros(weights[name].shape, np.float64) for name in names})

    def update(self, state: ServerState, aggregate: Arrays, *, part: float) -> ServerState:
        """Return the state after a round.

        Args:
            state: the state before the round.
            aggregate: the mean change of the clients.
            part: the fraction of all clients that took part.
        Returns:
            The new weights and momentum.
        """
        del part
        slots = {
            name: self.server_momentum * slot + aggregate[name[len(_MOMENTUM) :]] for name, slot in state.slots.items()
        }
        steps = {
            name: self.server_learning_rate * slots.get(_MOMENTUM + name, change)
            if name.startswith(WEIGHTS)
            else change
            for name, change in aggregate.items()
        }
        return ServerState(moved(state.weights, steps), slots)


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Federated averaging with mu/2 times the squared distance from the round's weights in each client's loss.

    The term keeps clients with unlike data, or with many local steps, near each other. With mu 0 it is `FedAvg`.

    Args:
        mu: the factor, at least 0.
        epochs: see `FedAvg`.
        batch_size: see `FedAvg`.
        weighting: see `FedAvg`.
        most_examples: see `FedAvg`.
        server_learning_rate: see `FedAvg`.
        server_momentum: see `FedAvg`.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> FedProx(mu=0.1, epochs=5).proximal
        0.1
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("mu", self.mu, minimum=0)

    @property
    def proximal(self) -> float | None:
        """The factor mu of the squared distance from the round's weights."""
        return float(self.mu)


def check_local(epochs: int, batch_size: int | None, weighting: Weighting, most_examples: int | None) -> None:
    """Validate the settings that all algorithms have."""
    validation.integer("epochs", epochs, minimum=1)
    for name, value in (("batch_size", batch_size), ("most_examples", most_examples)):
        if value is not None:
            validation.integer(name, value, minimum=1)
    validation.one_of("weighting", weighting, ("examples", "uniform"))


def weight_of(examples: int, weighting: Weighting, most_examples: int | None) -> float:
    if weighting == "uniform":
        return 1.0
    return float(examples if most_examples is None else min(examples, most_examples))
