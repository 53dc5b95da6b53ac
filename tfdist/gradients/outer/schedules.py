"""When workers that train by themselves meet, as values with pure functions. Loads no TensorFlow.

A schedule knows two things of a moment after ``step`` steps: whether the next step reduces gradients over all workers,
and which events are due before it. `meetings` carries events out.

Example:
    >>> schedule = LocalSGD(every=8)
    >>> schedule.events(7), schedule.events(8), schedule.left(3)
    ((), (Event(kind='meet', fragment=0),), 5)
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

#: steps to the next event where there is none
NEVER = 1 << 30


class Event(NamedTuple):
    """What workers do between two steps: meet; or send a fragment, and apply later what has arrived."""

    kind: Literal["meet", "send", "apply"]
    fragment: int = 0


@dataclass(frozen=True, kw_only=True)
class Synchronization:
    """The base of all schedules: workers train by themselves and meet every so many steps."""

    #: its name on the command line
    name: ClassVar[str] = ""

    every: int

    def __post_init__(self) -> None:
        validation.integer("every", self.every, minimum=1)

    def reduces(self, step: int) -> bool:
        """Whether the step after so many reduces gradients over all workers, as data parallelism does."""
        return False

    def events(self, step: int) -> tuple[Event, ...]:
        """Return what is due after so many steps."""
        return (Event("meet"),) if step > 0 and step % self.every == 0 else ()

    def left(self, step: int) -> int:
        """Return how many steps follow before an event, or before another kind of step."""
        return self.every - step % self.every

    def is_equal(self, step: int) -> bool:
        """Whether all workers have the same weights after so many steps."""
        return step == 0

    def agrees(self, step: int) -> bool:
        """Whether workers agree after so many steps on what their callbacks have decided."""
        return step % self.every == 0


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Synchronization):
    """Each worker trains by itself; every so many steps all take the mean of their weights.

        w := mean over workers of w,    after steps ``every``, 2 ``every``, ...

    The mean is weighted by the workers' shares of a batch. States of layers are averaged too.

    Args:
        every: steps between two meetings. 1 reduces gradients in every step, which is data parallelism.
        average_moments: average the optimizer's variables too, such as momentum and Adam's moments. It costs their
            bytes; without it each worker goes on with its own.

    Example:
        >>> LocalSGD(every=8).is_equal(16), LocalSGD(every=8).is_equal(17)
        (True, False)

    Source: S. Stich, "Local SGD Converges Fast and Communicates Little", 2019.
    """

    name: ClassVar[str] = "local-sgd"

    every: int
    average_moments: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.boolean("average_moments", self.average_moments)

    def reduces(self, step: int) -> bool:
        """Return True if ``every`` is 1."""
        return self.every == 1

    def events(self, step: int) -> tuple[Event, ...]:
        """Return a meeting after every so many steps, unless each step reduces gradients."""
        return () if self.every == 1 else super().events(step)

    def left(self, step: int) -> int:
        """Return the steps before the next meeting."""
        return NEVER if self.every == 1 else super().left(step)

    def is_equal(self, step: int) -> bool:
        """Return True where workers have just met."""
        return step % self.every == 0


@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Data parallelism for the first steps, then `LocalSGD`.

    Weights change most at the start, where workers would drift apart.

    Args:
        after: steps of data parallelism.
        every: steps between two meetings afterwards.
        average_moments: see `LocalSGD`.

    Example:
        >>> schedule = PostLocalSGD(after=1000, every=8)
        >>> schedule.reduces(999), schedule.reduces(1000), schedule.left(990)
        (True, False, 10)

    Source: T. Lin, S. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2020.
    """

    name: ClassVar[str] = "post-local-sgd"

    after: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.integer("after", self.after, minimum=1)

    def reduces(self, step: int) -> bool:
        """Return True in the first steps."""
        return step < self.after or super().reduces(step)

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the meetings after the first steps."""
        return super().events(step - self.after) if step > self.after else ()

    def left(self, step: int) -> int:
        """Return the steps before the next meeting, or before the first local step."""
        return self.after - step if step < self.after else super().left(step - self.after)

    def is_equal(self, step: int) -> bool:
        """Return True in the first steps, and where workers have just met."""
        return step <= self.after or super().is_equal(step - self.after)

    def agrees(self, step: int) -> bool:
        """Return True in the first steps, and at meetings."""
        return step <= self.after or super().agrees(step - self.after)


#: the schedules by the names that the command line takes
SCHEDULES: dict[str, type[Synchronization]] = {one.name: one for one in (LocalSGD, PostLocalSGD)}


def parse(text: str, *, name: str = "synchronization") -> Synchronization:
    """Return the schedule that a text describes: its name, and options behind a colon.

    Example:
        >>> parse("post-local-sgd:after=1000,every=8")
        PostLocalSGD(every=8, average_moments=True, after=1000)
    """
    kind, _, given = validation.text(name, text).partition(":")
    schedule = SCHEDULES[validation.one_of(name, kind.strip(), SCHEDULES)]
    known = {one.name: one.type for one in fields(schedule)}
    options: dict[str, Any] = {}
    for option in filter(None, (part.strip() for part in given.split(","))):
        key, _, value = (part.strip() for part in option.partition("="))
        validation.one_of(f"an option of {name} {kind}", key, [one for one in known if known[one] in _READ])
        options[key] = _READ[known[key]](f"{key} of {name} {text!r}", value)
    missing = [one.name for one in fields(schedule) if one.default is MISSING and one.name not in options]
    if missing:
        raise ConfigError(
            f"{name} is {text!r}, which has no {missing[0]}. Write it behind a colon: {kind}:{missing[0]}=8.",
            name=name,
            received=text,
        )
    return schedule(**options)


def _bool(name: str, text: str) -> bool:
    return bool(validation.one_of(name, text.lower(), ("true", "false")) == "true")


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; it must be a number.", name=name, received=text) from error


# what a text may give, by the type of the field
_READ: dict[Any, Callable[[str, str], Any]] = {
    int: lambda name, text: validation.parse_integer(name, text, minimum=0),
    float: _float,
    bool: _bool,
    str: lambda name, text: text,
}


def require(value: Any) -> Synchronization | None:
    """Return a strategy's schedule: a value, what a text describes, or None."""
    if value is None or isinstance(value, Synchronization):
        return value
    if isinstance(value, str):
        return parse(value)
    hint = f" Pass {value.__name__}(...), an object of it." if isinstance(value, type) else ""
    raise ConfigTypeError(
        f"synchronization is {validation.shown(value)} ({type(value).__name__}); it must be a schedule, such as "
        f"tfdist.strategies.LocalSGD(every=8), or a text such as 'local-sgd:every=8'.{hint}",
        name="synchronization",
        received=validation.shown(value),
    )
