"""Schedules of the meetings of workers that train by themselves, as values with pure functions. Loads no TensorFlow.

A schedule answers two questions about the moment after ``step`` steps: whether the next step reduces gradients over all
workers, and which events are due before it. `meetings` carries events out.

Example:
    >>> schedule = LocalSGD(every=8)
    >>> schedule.events(7), schedule.events(8), schedule.left(3)
    ((), (Event(kind='meet', fragment=0),), 5)
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

#: steps to the next event where there is none
NEVER = 1 << 30
#: steps between two meetings, or "auto": chosen by the first steps of `fit`
Every = int | Literal["auto"]


class Event(NamedTuple):
    """An action of workers between two steps: meet, send a fragment, apply what has arrived, or choose `every`."""

    kind: Literal["meet", "send", "apply", "choose"]
    fragment: int = 0


@dataclass(frozen=True, kw_only=True)
class Synchronization:
    """The base of all schedules by which workers train independently and meet after a number of steps.

    ``every="auto"`` is replaced by a number in the first steps of `fit`; until then, methods raise.
    """

    #: its name on the command line
    name: ClassVar[str] = ""

    every: Every

    def __post_init__(self) -> None:
        if self.every != "auto":
            hint = 'Or pass "auto", which measures in the first steps of fit.'
            validation.integer("every", self.every, minimum=1, hint=hint)

    @property
    def _period(self) -> int:
        if isinstance(self.every, str):
            raise ConfigError(
                f"every of {self!r} is chosen in the first steps of fit. Give a number to ask what is due at a step.",
                name="every",
                received=self.every,
            )
        return self.every

    def reduces(self, step: int) -> bool:
        """Return whether the step after ``step`` steps reduces gradients over all workers, as in data parallelism."""
        return False

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the events that are due after ``step`` steps."""
        return (Event("meet"),) if step > 0 and step % self._period == 0 else ()

    def left(self, step: int) -> int:
        """Return the number of steps before the next event, or before another kind of step."""
        return self._period - step % self._period

    def is_equal(self, step: int) -> bool:
        """Return whether all workers have the same weights after ``step`` steps."""
        return step == 0

    def agrees(self, step: int) -> bool:
        """Return whether workers agree, after ``step`` steps, on the decisions of their callbacks."""
        return step % self._period == 0


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Synchronization):
    """Local SGD: each worker trains independently; after ``every`` steps all take the mean of their weights.

        w := mean over workers of w,    after steps ``every``, 2 ``every``, ...

    The mean is weighted by the workers' shares of a batch. States of layers are averaged too.

    Args:
        every: the number of steps between two meetings. 1 reduces gradients in every step, which is data parallelism.
            "auto" measures steps and the network in the first steps of `fit`, and takes the fewest steps, at least 2,
            with which meetings add at most a twentieth to the time of steps.
        average_moments: whether the optimizer's variables are averaged too, such as momentum and Adam's moments. That
            sends as many more bytes; without it each worker keeps its own.
        inside: the number of consecutive workers that reduce gradients in every step, such as those of one host. 1 lets
            each worker train independently.

    Example:
        >>> LocalSGD(every=8).is_equal(16), LocalSGD(every=8).is_equal(17)
        (True, False)

    Source: S. Stich, "Local SGD Converges Fast and Communicates Little", 2019.
    """

    name: ClassVar[str] = "local-sgd"

    every: Every
    average_moments: bool = True
    inside: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.boolean("average_moments", self.average_moments)
        validation.integer("inside", self.inside, minimum=1)

    def reduces(self, step: int) -> bool:
        """Return True if ``every`` is 1."""
        return self._period == 1

    def events(self, step: int) -> tuple[Event, ...]:
        """Return a meeting after each interval of ``every`` steps, unless every step reduces gradients."""
        return () if self._period == 1 else super().events(step)

    def left(self, step: int) -> int:
        """Return the number of steps before the next meeting."""
        return NEVER if self._period == 1 else super().left(step)

    def is_equal(self, step: int) -> bool:
        """Return True if workers have just met."""
        return step % self._period == 0


@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Data parallelism for the first steps, then `LocalSGD`.

    Weights change most at the start, where workers would drift apart.

    Args:
        after: the number of steps of data parallelism.
        every: the number of steps between two meetings afterwards, or "auto"; see `LocalSGD`.
        average_moments: see `LocalSGD`.
        inside: see `LocalSGD`.

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
        """Return the number of steps before the next meeting, or before the first local step."""
        return self.after - step if step < self.after else super().left(step - self.after)

    def is_equal(self, step: int) -> bool:
        """Return True in the first steps, and if workers have just met."""
        return step <= self.after or super().is_equal(step - self.after)

    def agrees(self, step: int) -> bool:
        """Return True in the first steps, and at meetings."""
        return step <= self.after or super().agrees(step - self.after)


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Synchronization):
    """DiLoCo: workers exchange the changes of their weights, and an outer optimizer makes one step from their mean.

        D := mean over workers of (a - w),    a := outer(a, D),    w := a

    with a the weights on which all agreed last. States of layers are averaged; optimizer slots stay each worker's own.

    Args:
        every: the number of steps between two exchanges of a fragment, or "auto"; see `LocalSGD`.
        outer: a Keras optimizer, or a function that makes one; its gradient is D. None is SGD(0.7, momentum=0.5,
            nesterov=True); the authors' momentum of 0.9 needs hundreds of exchanges. Pass a function to
            `MultiWorkerMirroredStrategy`, which must be made before any variable.
        fragments: the number of equal parts of the weights, which are exchanged at different steps, so that the network
            is used evenly. At most ``every``.
        delay: the number of steps between sending a fragment and applying what all have sent; training continues
            meanwhile. Less than ``every / fragments``.
        keep: None lets a worker keep what it has learned while a fragment travelled: w := a + (w - sent), with its
            weights w now and those that it sent. A fraction mixes: w := keep w + (1 - keep) a.
        wire: None sends D whole; "int8" and "int4" send 8 or 4 bits of each number and remember the rest (error
            feedback); or a codec of `tfdist.compression`. ``ErrorFeedback(codec=TopK(density=0.02))`` with an outer
            SGD without momentum is SparseLoCo: the memory of errors takes the place of the momentum.
        inside: see `LocalSGD`.

    Example:
        >>> schedule = DiLoCo(every=100, fragments=4, delay=5, wire="int4")
        >>> schedule.events(50), schedule.events(55)
        ((Event(kind='send', fragment=1),), (Event(kind='apply', fragment=1),))

    Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, and
    "Streaming DiLoCo with overlapping communication", 2025; A. Sarfi et al., "Communication Efficient LLM Pre-training
    with SparseLoCo", 2025.
    """

    name: ClassVar[str] = "diloco"

    every: Every
    outer: Any = None
    fragments: int = 1
    delay: int = 0
    keep: float | None = field(default=None, metadata={"reads": float})
    wire: Any = field(default=None, metadata={"reads": str})
    inside: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        known = None if isinstance(self.every, str) else self.every
        validation.integer("fragments", self.fragments, minimum=1, maximum=known)
        most = None if known is None else (known - 1) // self.fragments
        hint = f"A fragment is applied before the next one is sent, of {self.fragments} in {self.every} steps."
        validation.integer("delay", self.delay, minimum=0, maximum=most, hint=hint)
        if self.keep is not None:
            validation.number("keep", self.keep, minimum=0, maximum=1)
        validation.integer("inside", self.inside, minimum=1)

    def _sent_after(self, fragment: int) -> int:
        return self._period * (fragment + 1) // self.fragments

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the exchange of a fragment, or its two ends; one fragment is applied before another is sent."""
        applied, sent = [], []
        for fragment in range(self.fragments):
            first = self._sent_after(fragment)
            if self.delay and step >= first + self.delay and (step - first - self.delay) % self._period == 0:
                applied.append(Event("apply", fragment))
            if step >= first and (step - first) % self._period == 0:
                sent.append(Event("send" if self.delay else "meet", fragment))
        return (*applied, *sent)

    def left(self, step: int) -> int:
        """Return the number of steps before the next event of a fragment."""
        sent = [self._sent_after(fragment) for fragment in range(self.fragments)]
        due = [*sent, *(one + self.delay for one in sent)]
        return min((one - step - 1) % self._period + 1 for one in due)

    def is_equal(self, step: int) -> bool:
        """Return True if workers have just exchanged all weights."""
        is_whole = self.fragments == 1 and not self.delay and not self.keep
        return step == 0 or (is_whole and step % self._period == 0)


@dataclass(frozen=True, kw_only=True)
class ElasticAveraging(Synchronization):
    """Elastic averaging: springs pull each worker and a centre, of which all workers have a copy, to each other.

        e := alpha (w - c),    w := w - e,    c := c + sum over workers of e

    The model shows the centre in evaluations and after `fit`.

    Args:
        every: the number of steps between two exchanges, or "auto"; see `LocalSGD`.
        alpha: the strength of a spring; the authors take 0.9 divided by the number of workers.

    Example:
        >>> ElasticAveraging(every=8, alpha=0.45).left(6)
        2

    Source: S. Zhang, A. Choromanska and Y. LeCun, "Deep learning with Elastic Averaging SGD", 2015.
    """

    name: ClassVar[str] = "elastic"

    every: Every
    alpha: float

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("alpha", self.alpha, above=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class Gossip(Synchronization):
    """Gossip: each worker mixes its weights with those of neighbours, and none waits for all.

        w_i := sum over j of W_ij w_j

    Args:
        topology: "ring": mix with the previous and the next worker, a third each; "exponential": mix with the worker 1,
            2, 4, ... places behind, another one at each meeting, half each.
        every: the number of steps between two meetings, or "auto"; see `LocalSGD`.
        push_sum: whether to send to only one neighbour, together with the weight that was passed on; a worker divides
            its values by the weight that it has. A ring then needs half the messages.

    Example:
        >>> Gossip(topology="exponential").events(5)
        (Event(kind='meet', fragment=4),)

    Source: X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017; M. Assran et al.,
    "Stochastic Gradient Push for Distributed Deep Learning", 2019.
    """

    name: ClassVar[str] = "gossip"

    every: Every = 1
    topology: str = "ring"
    push_sum: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("topology", self.topology, ("ring", "exponential"))
        validation.boolean("push_sum", self.push_sum)

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the meeting with its number, which chooses the neighbours."""
        return (Event("meet", step // self._period - 1),) if step > 0 and step % self._period == 0 else ()

    def agrees(self, step: int) -> bool:
        """Return False: workers agree only at the end of an epoch, because for agreement all wait for each other."""
        return False


def mixing(schedule: Gossip, workers: int, number: int) -> tuple[tuple[float, ...], ...]:
    """Return the matrix W of a meeting, whose rows and columns each add up to 1.

    Example:
        >>> mixing(Gossip(topology="exponential"), 4, 1)[0]
        (0.5, 0.0, 0.5, 0.0)
    """
    distances = [1]
    if schedule.topology == "exponential":
        distances = [1 << (number % rounds(schedule, workers))]
    elif not schedule.push_sum:
        distances = [1, workers - 1]
    parts = sorted({0, *(distance % workers for distance in distances)})
    table = [[0.0] * workers for _ in range(workers)]
    for worker in range(workers):
        for distance in parts:
            table[worker][(worker + distance) % workers] = 1.0 / len(parts)
    return tuple(map(tuple, table))


def rounds(schedule: Gossip, workers: int) -> int:
    """Return the number of meetings after which the neighbours repeat."""
    return max(1, (workers - 1).bit_length()) if schedule.topology == "exponential" else 1


#: the schedules by the names that the command line takes
SCHEDULES: dict[str, type[Synchronization]] = {
    one.name: one for one in (LocalSGD, PostLocalSGD, DiLoCo, ElasticAveraging, Gossip)
}


def terms_of(schedule: Synchronization) -> str:
    """Return the terms on which workers must agree, as text: all except the outer optimizer, which may be a function.

    Example:
        >>> terms_of(Gossip(topology="exponential"))
        'gossip:every=1,topology=exponential,push_sum=False'
    """
    names = [one.name for one in fields(schedule) if one.name != "outer"]
    return f"{schedule.name}:{','.join(f'{name}={getattr(schedule, name)}' for name in names)}"


def inside(schedule: Synchronization) -> int:
    """Return the number of workers in an island, which reduce gradients in every step."""
    return schedule.inside if isinstance(schedule, (LocalSGD, DiLoCo)) else 1


def parse(text: str, *, name: str = "synchronization") -> Synchronization:
    """Return the schedule that a text describes: its name, and options behind a colon.

    Example:
        >>> parse("post-local-sgd:after=1000,every=8")
        PostLocalSGD(every=8, average_moments=True, inside=1, after=1000)
    """
    kind, _, given = validation.text(name, text).partition(":")
    schedule = SCHEDULES[validation.one_of(name, kind.strip(), SCHEDULES)]
    known = {one.name: one.metadata.get("reads", one.type) for one in fields(schedule)}
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


def _every(name: str, text: str) -> Every:
    return "auto" if text == "auto" else validation.parse_integer(name, text, minimum=0, hint='Or write "auto".')


def _bool(name: str, text: str) -> bool:
    return bool(validation.one_of(name, text.lower(), ("true", "false")) == "true")


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; it must be a number.", name=name, received=text) from error


# readers of texts, by the type of the field
_READ: dict[Any, Callable[[str, str], Any]] = {
    int: lambda name, text: validation.parse_integer(name, text, minimum=0),
    Every: _every,
    float: _float,
    bool: _bool,
    str: lambda name, text: text,
}


def require(value: Any) -> Synchronization | None:
    """Return a strategy's schedule, given as a value, a text, or None."""
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
