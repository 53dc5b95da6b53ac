"""The rules of rounds: the number of clients, the deadlines, and the next step after a round that fails."""

from dataclasses import dataclass
from typing import Literal

from tfdist import validation
from tfdist.errors import ConfigError

EvaluateOn = Literal["server", "clients", "nothing"]


@dataclass(frozen=True)
class RoundRules:
    """The rules of a run; the same for all of its rounds.

    `target` updates end the training of a round. `spare` more clients are asked, so that a round need not wait for slow
    ones. At the deadline, `minimum` updates are enough.

    With a `rate`, each connected client is asked with this probability, independently of the others. A round then has
    as many clients as that gives, even none: `target` is their expected number, and does not end the training.
    """

    rounds: int
    target: int
    minimum: int = 1
    spare: int = 0
    wait_for: int = 1  # clients that must be there before a round begins
    attempts: int = 5  # a round with too few updates is tried again, with other clients
    select_seconds: float = 600.0
    configure_seconds: float = 60.0
    train_seconds: float = 600.0
    evaluate_seconds: float = 600.0
    evaluate_every: int = 1
    evaluate_on: EvaluateOn = "server"
    seed: int = 0
    rate: float | None = None
    salt: str = ""  # of the samples by rate: a secret, where they are to tell nothing

    def __post_init__(self) -> None:
        for name in ("rounds", "target", "wait_for", "attempts", "evaluate_every"):
            validation.integer(name, getattr(self, name), minimum=1)
        for name in ("spare", "seed"):
            validation.integer(name, getattr(self, name), minimum=0)
        validation.integer("minimum", self.minimum, minimum=1 if self.rate is None else 0)
        if self.rate is not None:
            validation.number("rate", self.rate, above=0, maximum=1)
        for name in ("select_seconds", "configure_seconds", "train_seconds", "evaluate_seconds"):
            validation.number(name, getattr(self, name), above=0)
        validation.one_of("evaluate_on", self.evaluate_on, ("server", "clients", "nothing"))
        if self.minimum > self.target:
            raise ConfigError(
                f"minimum is {self.minimum} and a round has {self.target} clients; "
                f"a minimum above that is never reached. Lower it, or take more clients in a round.",
                name="minimum",
                received=self.minimum,
            )
