"""The automatic choice of a codec for each gradient, from measurements of the network and of the codecs."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, require_codec
from tfdist.compression.codecs.casting import Float16, Whole
from tfdist.compression.codecs.power_sgd import PowerSGD
from tfdist.compression.codecs.quantized import QSGD, Natural
from tfdist.compression.error_feedback import ErrorFeedback
from tfdist.errors import ConfigError
from tfdist.planner.meeting_interval import travel_seconds
from tfdist.planner.planner_link import Link

# Predictions are no better than this part of them: a network has a queue, and lets short messages pass at once.
_MARGIN = 0.2
# A network that is so many times as fast or as slow is another one.
_CHANGED = 1.5
# At most this part of the time of training is spent on measuring the network.
_MEASURING = 0.01
# How many messages one after the other: the two hops, or the two factors of PowerSGD.
_HOPS = 2


@dataclass(frozen=True)
class Cost:
    """The time that a member takes to encode and to decode."""

    seconds: float = 0.0  # the seconds for each tensor that is compressed by itself
    seconds_per_element: float = 0.0  # the seconds for each number

    @classmethod
    def of(cls, few: tuple[int, float], many: tuple[int, float]) -> "Cost":
        """Return the cost from two measurements, (elements, seconds) each.

        Example:
            >>> Cost.of((1000, 0.002), (101_000, 0.003))
            Cost(seconds=0.00199, seconds_per_element=1e-08)
        """
        each = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(max(0.0, few[1] - each * few[0]), each)


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of a step's reduction."""

    seconds: float  # the seconds of encoding, transfer and decoding
    wire_bytes: float  # the bytes that a member sends


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements from which codecs are chosen in a job."""

    options: Sequence[Codec]  # the codecs; the first one is no compression
    costs: Sequence[Cost]  # the cost of each codec
    link: Link  # the link between members
    members: int  # number of members
    bucket_bytes: int  # the number of bytes that travel together

    def latency_seconds(self, sent: float = 1.0) -> float:
        """Return the seconds that an all_reduce in which a member sends this many bytes takes besides those bytes."""
        taken = travel_seconds(self.link, max(sent, 1.0), self.members)
        return max(taken - sent / self.link.bytes_per_second, 0.0)


def is_like(link: Link, other: Link) -> bool:
    """Return whether a choice for one link holds for the other.

    Example:
        >>> links = [Link(latency_seconds=1e-3, bytes_per_second=rate) for rate in (1e8, 1.1e8, 1e7)]
        >>> is_like(links[0], links[1]), is_like(links[0], links[2])
        (True, False)
    """
    return 1 / _CHANGED <= link.bytes_per_second / other.bytes_per_second <= _CHANGED


def is_due(seconds_since: float, seconds_taken: float) -> bool:
    """Return whether the network may be measured again.

    Example:
        >>> is_due(seconds_since=5.0, seconds_taken=0.08), is_due(seconds_since=9.0, seconds_taken=0.08)
        (False, True)
    """
    return seconds_taken <= _MEASURING * seconds_since


def predicted(given: Measured, specs: Mapping[int, tf.TensorSpec], choice: Mapping[int, int]) -> Prediction:
    """Return the predicted cost of reducing the gradients of a step.

    For the n numbers, S bytes, of the gradients that have a codec:

        t = k u + c n + h m a + w b

    with the computing time k for each of u tensors and c for each number; h rounds of m messages of latency a; and w
    bytes at b seconds each. Members that send straight to each other have all messages of a round under way at the same
    time, so m is 1. If a codec takes each gradient by itself, u is the number of gradients, else of buckets.
    The first bucket of gradients without a codec is counted too, since they travel in any case.

    Example:
        >>> from tfdist.compression import QSGD
        >>> options = [QSGD(bits=8)]
        >>> link = Link(latency_seconds=0.0, bytes_per_second=12.5e6)
        >>> given = Measured(options=options, costs=[Cost()], link=link, members=2, bucket_bytes=1 << 22)
        >>> round(predicted(given, {0: tf.TensorSpec([1024, 1024], tf.float32)}, {0: 0}).seconds, 3)
        0.085
    """
    seconds = wire_bytes = 0.0
    for index in sorted({0, *choice.values()}):
        codec, cost = given.options[index], given.costs[index]
        own = [spec for place, spec in specs.items() if choice[place] == index]
        elements = sum(map(_elements, own))
        sent = sum(codec.wire_bytes(spec, given.members) for spec in own)
        buckets = math.ceil(sum(_elements(spec) * spec.dtype.size for spec in own) / given.bucket_bytes)
        rounds = 1 if codec.accuracy in ("lossless", "rounded") else _HOPS
        messages = max(1, math.ceil(sent / given.bucket_bytes) if codec.by_tensor else buckets)
        seconds += cost.seconds * (len(own) if codec.by_tensor else buckets) + cost.seconds_per_element * elements
        late = rounds * given.latency_seconds(sent / rounds / messages)
        seconds += late * (1 if given.link.is_direct else messages) + sent / given.link.bytes_per_second
        wire_bytes += sent
    return Prediction(seconds, wire_bytes)


def chosen(given: Measured, specs: Mapping[int, tf.TensorSpec]) -> dict[int, int]:
    """Return the index of the option for each gradient.

    The candidates, in this order: no compression, each codec for the gradients that it makes cheaper, and the cheapest
    codec for each gradient. The first candidate whose step is as short as the best one, within the error of
    predictions, is chosen. So the preferred options come first, and a codec that saves less than that error is not
    used.

    Example:
        >>> from tfdist.compression import QSGD, Whole
        >>> specs = {0: tf.TensorSpec([1024, 1024], tf.float32), 1: tf.TensorSpec([3, 3], tf.float32)}
        >>> def on(link: Link) -> dict[int, int]:
        ...     costs = [Cost(), Cost(1e-3, 1e-8)]
        ...     options = [Whole(), QSGD(bits=8)]
        ...     return chosen(Measured(options=options, costs=costs, link=link, members=2, bucket_bytes=1 << 22), specs)
        >>> on(Link.parse("100mbit", delay_ms=0.5)), on(Link.parse("80gbit"))
        ({0: 1, 1: 0}, {0: 0, 1: 0})
    """

    def by_itself(place: int, index: int) -> float:
        codec, cost, elements = given.options[index], given.costs[index], _elements(specs[place])
        computed = cost.seconds_per_element * elements + (cost.seconds if codec.by_tensor else 0.0)
        return computed + codec.wire_bytes(specs[place], given.members) / given.link.bytes_per_second

    every = range(len(given.options))
    looked_at = [
        {place: min((0, index), key=functools.partial(by_itself, place)) for place in specs} for index in every
    ]
    looked_at.append({place: min(every, key=functools.partial(by_itself, place)) for place in specs})
    seconds = [predicted(given, specs, one).seconds for one in looked_at]
    return next(one for one, taken in zip(looked_at, seconds, strict=True) if (1 - _MARGIN) * taken <= min(seconds))


def described(given: Measured, specs: Mapping[int, tf.TensorSpec], choice: Mapping[int, int]) -> str:
    """Describe a choice as text: codecs, bytes and times; the arguments are those of `predicted`."""
    used = sorted(set(choice.values()))
    counts = [f"{given.options[index].shown} for {list(choice.values()).count(index)}" for index in used]
    now, whole = predicted(given, specs, choice), predicted(given, specs, dict.fromkeys(specs, 0))
    return (
        f"{', '.join(counts)} of {len(choice)} gradients: {now.wire_bytes / 1e6:.3g} MB a step instead of "
        f"{whole.wire_bytes / 1e6:.3g} MB, {1e3 * now.seconds:.3g} ms instead of {1e3 * whole.seconds:.3g} ms "
        f"(measured: {8e-6 * given.link.bytes_per_second:.3g} Mbit/s, {1e3 * given.latency_seconds():.2g} ms)"
    )


def _elements(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements())


#: the accuracies that each value of `within` allows
WITHIN: dict[str, tuple[Accuracy, ...]] = {
    "lossless": ("lossless",),
    "unbiased": ("lossless", "rounded", "unbiased"),
    "any": ("lossless", "rounded", "unbiased", "biased"),
}


@dataclass(frozen=True, kw_only=True)
class Auto(Codec):
    """An automatic choice: for each gradient the codec with the shortest predicted step; none if none pays.

    Predictions are accurate to about a fifth. If the predicted steps of codecs differ by less, the first of the
    candidates is taken; no compression precedes all of them.

    Before the first step, workers measure the latency and the bandwidth between them and the speed of each codec, and
    all use the measurements of the first worker. At the beginning of a later epoch they may measure the network again,
    which takes at most a hundredth of the time, and choose again if the network has changed. Between replicas of one
    process nothing is compressed.

    Args:
        within: the error that a mean gradient may get: "lossless", none; "unbiased", rounding to 16 bits or noise whose
            mean is zero; "any", also an error that is remembered and sent later.
        candidates: the codecs, the preferred ones first; by default float16, natural, 8 bits of QSGD, and PowerSGD of
            rank 4.

    Raises:
        ConfigError: ``within`` is none of these; or a candidate has a momentum, which cannot come and go.

    Example:
        >>> [codec.name for codec in Auto(within="unbiased").options]
        ['none', 'float16', 'natural', 'qsgd']

    Source: S. Agarwal, H. Wang, S. Venkataraman and D. Papailiopoulos, "On the Utility of Gradient Compression in
    Distributed Training Systems", 2022 (the formula of the time that a codec saves).
    """

    name: ClassVar[str] = "auto"
    accuracy: ClassVar[Accuracy] = "biased"
    has_memory: ClassVar[bool] = True

    within: str = "any"
    candidates: Sequence[Codec] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("within", self.within, WITHIN)
        for codec in self.candidates or ():
            require_codec("candidates", codec)
            if codec.has_momentum or isinstance(codec, Auto):
                raise ConfigError(
                    f"candidates has {codec!r}, which can only be chosen for a whole training.",
                    name="candidates",
                    received=codec,
                )
        if self.candidates is not None:
            object.__setattr__(self, "candidates", tuple(self.candidates))

    @property
    def options(self) -> list[Codec]:
        """The choices: no compression, and the candidates that are accurate enough."""
        given = self.candidates or (Float16(), Natural(), QSGD(bits=8), PowerSGD(rank=4))
        fine = [codec for codec in given if codec.accuracy in WITHIN[self.within]]
        return [Whole(), *map(with_memory, fine)]

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes that a member sends with the smallest option."""
        return min(codec.wire_bytes(spec, members) for codec in self.options)


def with_memory(codec: Codec) -> Codec:
    """Return a codec with `ErrorFeedback` if it is biased and remembers nothing.

    Example:
        >>> with_memory(PowerSGD(rank=4)).has_memory
        True
    """
    return ErrorFeedback(codec=codec) if codec.accuracy == "biased" and not codec.has_memory else codec
