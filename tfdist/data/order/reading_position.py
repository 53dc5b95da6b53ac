"""The reading position as a few numbers, to save and to resume from."""

from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError

STATE_VERSION = 1


@dataclass
class Position:
    """The epoch that is read, and how much of it had been consumed when its reading began.

    Attributes:
        epoch: 0 for the first.
        start: examples of this epoch that were consumed before, by an earlier process.
        batches: batches that have been handed out since, where somebody counts them.
        is_last: whether the last batch of the epoch has been handed out. Who reads does not always look further.
        is_uncounted: whether an iteration has begun whose batches nobody counts.
    """

    epoch: int = 0
    start: int = 0
    batches: int = 0
    is_last: bool = False
    is_uncounted: bool = False

    def lead_to(self, other: "Position") -> None:
        """Be where another position is, at the beginning of an iteration."""
        self.epoch, self.start, self.batches, self.is_last = other.epoch, other.start, 0, False
        self.is_uncounted = False

    def begin(self, *, counted: bool) -> None:
        """Begin an iteration: the next epoch if this one was read to its end, else what is left of this one."""
        if self.is_last:
            self.epoch, self.start = self.epoch + 1, 0
        self.batches, self.is_last, self.is_uncounted = 0, False, not counted


@dataclass(frozen=True)
class Identity:
    """What must be the same for a position to mean the same.

    Attributes:
        digest: of the manifest.
        order: its name.
        seed: of the order.
        examples: positions in an epoch.
    """

    digest: str
    order: str
    seed: int
    examples: int

    def state(self, *, epoch: int, consumed: int) -> dict[str, Any]:
        """Return a position as JSON of less than 1 KB.

        Example:
            >>> Identity("5f", "full", 17, 100).state(epoch=2, consumed=40)["consumed"]
            40
        """
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "consumed": consumed,
            "examples": self.examples,
            "seed": self.seed,
            "order": self.order,
            "digest": self.digest,
        }

    def position(self, state: Any) -> Position:
        """Return the position that a state describes."""
        fields = {"version", "epoch", "consumed", "examples", "seed", "order", "digest"}
        if not isinstance(state, dict) or set(state) != fields:
            raise ConfigError(
                f"state is {validation.shown(state)}; it must be what `state()` of a tfdist dataset returned, with "
                f"{', '.join(sorted(fields))}.",
                name="state",
                received=validation.shown(state),
            )
        if state["version"] != STATE_VERSION:
            raise ConfigError(
                f"state has version {state['version']!r}; this tfdist reads version {STATE_VERSION}.",
                name="state",
                received=state["version"],
            )
        ours = self.state(epoch=0, consumed=0)
        for name, what in (
            ("digest", "the data were written anew or repaired since"),
            ("examples", "an epoch has another number of examples"),
            ("order", "the order is another, or one of an earlier tfdist"),
            ("seed", "the seed is another"),
        ):
            if state[name] != ours[name]:
                raise ConfigError(
                    f"state has {name} {validation.shown(state[name])}, the dataset {validation.shown(ours[name])}: "
                    f"{what}, so the position would mean other examples. Read with what the state was saved with, or "
                    "begin without a state.",
                    name=name,
                    received=validation.shown(state[name]),
                )
        epoch = validation.integer("epoch of the state", state["epoch"], minimum=0)
        consumed = validation.integer("consumed of the state", state["consumed"], minimum=0, maximum=self.examples)
        return Position(epoch + 1, 0) if consumed >= self.examples else Position(epoch, consumed)
