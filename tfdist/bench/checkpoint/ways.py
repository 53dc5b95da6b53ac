"""The ways to train that are compared: without saves, with Keras' callback, and with tfdist's."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.validation import integer, number

__all__ = ["NONE", "PEER", "WAYS", "Setup", "Way"]

NONE = "no saves"
PEER = "keras"
#: what takes turns; "waits" is tfdist with asynchronous=False
WAYS = (NONE, PEER, "tfdist, waits", "tfdist")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        megabytes: sizes of what is saved: weights and the two slots of Adam.
        saves: in one call of `fit`.
        steps: from one save to the next.
        batch_size: examples of a step.
        rounds: measurements of each way.
    """

    megabytes: Sequence[float] = (1.0, 10.0, 100.0)
    saves: int = 5
    steps: int = 10
    batch_size: int = 64
    rounds: int = 7

    def __post_init__(self) -> None:
        for size in self.megabytes:
            number("megabytes", size, minimum=0.1)
        for name in ("saves", "steps", "batch_size", "rounds"):
            integer(name, getattr(self, name), minimum=1)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train a model with a state of one size.

    Attributes:
        megabytes: of the state, as asked for.
        name: from `WAYS`.
        saves: in one call of `fit`.
        seconds: of one call of `fit`, one per round; all of it counts, also the wait for the last save.
        stops: seconds from the end of a step to the begin of the next where there is a save, beyond those where there
            is none; the mean of one call of `fit`, one per round.
        starts: seconds from calling `fit` to its first step where it goes on from a backup, one per round.
        bytes: of one backup on the disk.
    """

    megabytes: float
    name: str
    saves: int
    seconds: Sequence[float]
    stops: Sequence[float]
    starts: Sequence[float]
    bytes: int

    def added(self, without: "Way") -> list[float]:
        """Return the seconds that a save adds to training, one per round; noise can make one negative.

        Example:
            >>> none = Way(megabytes=1, name=NONE, saves=2, seconds=[1.0], stops=[0.0], starts=[0.0], bytes=0)
            >>> Way(megabytes=1, name=PEER, saves=2, seconds=[1.5], stops=[0.2], starts=[0.1], bytes=9).added(none)
            [0.25]
        """
        return [(a - b) / self.saves for a, b in zip(self.seconds, without.seconds, strict=True)]

    def restores(self, without: "Way") -> list[float]:
        """Return the seconds that going on from a backup takes, one per round."""
        return [a - b for a, b in zip(self.starts, without.starts, strict=True)]
