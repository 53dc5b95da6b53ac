"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of clients in their gradients."""

from dataclasses import dataclass

import numpy as np

from tfdist import validation
from tfdist.federated.algorithms.algorithm import CONTROL, WEIGHTS, Algorithm, ServerState, moved
from tfdist.federated.algorithms.averaging import check_local
from tfdist.federated.client_update import Arrays


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD with its second option for control variates.

    A client's gradients are corrected by c - c_i. After K steps from x to y with the learning rate lr, its c_i is
    c_i - c + (x - y) / (K lr). The server's c is the mean of c_i over all clients. All clients have the same weight.
    The model must be compiled with plain SGD: the steps of other optimizers are no gradients, and are refused.

    Args:
        epochs: the number of epochs over a client's data in a round.
        batch_size: the batch size of a client; None: all of its examples at once.
        server_learning_rate: the factor of the mean change.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> Scaffold(epochs=5).has_controls
        True
    """

    epochs: int = 1
    batch_size: int | None = 32
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_local(self.epochs, self.batch_size, "uniform", None)
        validation.number("server_learning_rate", self.server_learning_rate, above=0)

    @property
    def has_controls(self) -> bool:
        """True: clients keep control variates."""
        return True

    def weight(self, examples: int) -> float:
        """Return 1, because the theory has no weights."""
        del examples
        return 1.0

    def begin(self, weights: Arrays) -> ServerState:
        """Return the state before the first round: all control variates are 0."""
        names = [name for name in weights if name.startswith(WEIGHTS)]
        return ServerState(weights, {CONTROL + name: np.zeros(weights[name].shape, np.float64) for name in names})

    def update(self, state: ServerState, aggregate: Arrays, *, part: float) -> ServerState:
        """Return the state after a round.

        Args:
            state: the state before the round.
            aggregate: the mean change of the clients' weights and control variates.
            part: the fraction of all clients that took part; c moves by this fraction of the mean change of c_i.
        Returns:
            The new weights and control variates.
        """
        slots = {name: slot + part * aggregate[name] for name, slot in state.slots.items()}
        steps = {
            name: self.server_learning_rate * change if name.startswith(WEIGHTS) else change
            for name, change in aggregate.items()
            if not name.startswith(CONTROL)
        }
        return ServerState(moved(state.weights, steps), slots)
