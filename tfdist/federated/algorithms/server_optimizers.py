"""FedOpt: the mean change of the clients is the gradient of an adaptive optimizer at the server (Reddi et al. 2021)."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.federated.algorithms.algorithm import WEIGHTS, Algorithm, ServerState, Weighting, moved
from tfdist.federated.algorithms.averaging import check_local, weight_of
from tfdist.federated.client_update import Arrays

_FIRST, _SECOND = "first/", "second/"


@dataclass(frozen=True, kw_only=True)
class FedOpt(Algorithm):
    """Federated averaging with Adam, Yogi or Adagrad at the server.

    The mean change D of the clients stands for the gradient: m = b1 m + (1 - b1) D, and w += lr m / (sqrt(v) + tau).
    Adam: v = b2 v + (1 - b2) D^2. Yogi: v -= (1 - b2) D^2 sign(v - D^2). Adagrad: v += D^2. No bias is corrected; v
    begins at tau^2. Statistics such as moving means are averaged.

    Args:
        optimizer: "adam", "yogi" or "adagrad".
        server_learning_rate: lr, the learning rate of the server.
        beta_1: b1, the decay of the first moment; "adagrad" commonly takes 0.
        beta_2: b2, the decay of the second moment.
        tau: the degree of adaptivity; larger is nearer to plain averaging.
        epochs: see `FedAvg`.
        batch_size: see `FedAvg`.
        weighting: see `FedAvg`.
        most_examples: see `FedAvg`.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> FedOpt(optimizer="yogi", server_learning_rate=0.01, epochs=2).beta_2
        0.99
    """

    optimizer: Literal["adam", "yogi", "adagrad"] = "adam"
    server_learning_rate: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3
    epochs: int = 1
    batch_size: int | None = 32
    weighting: Weighting = "examples"
    most_examples: int | None = None

    def __post_init__(self) -> None:
        check_local(self.epochs, self.batch_size, self.weighting, self.most_examples)
        validation.one_of("optimizer", self.optimizer, ("adam", "yogi", "adagrad"))
        validation.number("server_learning_rate", self.server_learning_rate, above=0)
        validation.number("beta_1", self.beta_1, minimum=0, maximum=1)
        validation.number("beta_2", self.beta_2, minimum=0, maximum=1)
        validation.number("tau", self.tau, above=0)

    def weight(self, examples: int) -> float:
        """Return the weight of a client with this number of examples."""
        return weight_of(examples, self.weighting, self.most_examples)

    def begin(self, weights: Arrays) -> ServerState:
        """Return the state before the first round."""
        shapes = {name: array.shape for name, array in weights.items() if name.startswith(WEIGHTS)}
        first = {_FIRST + name: np.zeros(shape, np.float64) for name, shape in shapes.items()}
        second = {_SECOND + name: np.full(shape, self.tau**2, np.float64) for name, shape in shapes.items()}
        return ServerState(weights, first | second)

    def update(self, state: ServerState, aggregate: Arrays, *, part: float) -> ServerState:
        """Return the state after a round.

        Args:
            state: the state before the round.
            aggregate: the mean change of the clients.
            part: the fraction of all clients that took part.
        Returns:
            The new weights and moments.
        """
        del part
        slots, steps = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for name, change in aggregate.items():
            if not name.startswith(WEIGHTS):
                steps[name] = change
                continue
            first = self.beta_1 * state.slots[_FIRST + name] + (1 - self.beta_1) * change
            second = self._second(state.slots[_SECOND + name], np.square(change, dtype=np.float64))
            slots[_FIRST + name], slots[_SECOND + name] = first, second
            steps[name] = self.server_learning_rate * first / (np.sqrt(second) + self.tau)
        return ServerState(moved(state.weights, steps), slots)

    def _second(self, before: NDArray[Any], square: NDArray[Any]) -> NDArray[Any]:
        if self.optimizer == "adagrad":
            return before + square
        if self.optimizer == "yogi":
            return before - (1 - self.beta_2) * square * np.sign(before - square)
        return self.beta_2 * before + (1 - self.beta_2) * square
