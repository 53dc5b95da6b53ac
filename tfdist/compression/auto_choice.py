"""Choose the codec with the shortest step: pure functions of measurements."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.compression.codec import Codec
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
    """What a member computes to encode and to decode.

    Attributes:
        seconds: for each tensor that is compressed by itself.
        seconds_per_element: for each of its numbers.
    """

    seconds: float = 0.0
    seconds_per_element: float = 0.0

    @classmethod
    def of(cls, few: tuple[int, float], many: tuple[int, float]) -> "Cost":
        """Return the cost of two measurements, (elements, seconds) each.

        Example:
            >>> Cost.of((1000, 0.002), (101_000, 0.003))
            Cost(seconds=0.00199, seconds_per_element=1e-08)
        """
        each = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(max(0.0, few[1] - each * few[0]), each)


@dataclass(frozen=True)
class Prediction:
    """What a step's reduction is predicted to cost.

    Attributes:
        seconds: of encoding, what travels, and decoding.
        wire_bytes: what a member sends.
    """

    seconds: float
    wire_bytes: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of a job.

    Attributes:
        options: the codecs; the first one is no compression.
        costs: of each.
        link: between members.
        members: number of members.
        bucket_bytes: how much travels together.
    """

    options: Sequence[Codec]
    costs: Sequence[Cost]
    link: Link
    members: int
    bucket_bytes: int

    @property
    def latency_seconds(self) -> float:
        """The time of an all_reduce of next to nothing."""
        return 2 * (self.members - 1) * self.link.latency_seconds


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
    """Return what the gradients of a step cost.

    For the n numbers, S bytes, of the gradients that have a codec:

        t = k u + c n + h m a + w b

    with k and c what it computes for each of u tensors and for each number; h rounds of m messages of latency a; and w
    bytes that travel in b seconds each. u is the number of gradients for a codec that takes each by itself, else that
    of buckets. What no codec is for travels in any case, and its first bucket is counted here.

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
        seconds += rounds * messages * given.latency_seconds + sent / given.link.bytes_per_second
        wire_bytes += sent
    return Prediction(seconds, wire_bytes)


def chosen(given: Measured, specs: Mapping[int, tf.TensorSpec]) -> dict[int, int]:
    """Return the index of the option for each gradient.

    Looked at, in this order: no compression, each codec for the gradients that it makes cheaper, and the cheapest codec
    for each gradient. Chosen is the first with which a step takes as long as with the best, but for what predictions
    may be wrong by; so options are given in the order in which they are preferred, and a codec that saves less than
    that is not used.

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
    """Return a choice in words: codecs, bytes and times; arguments as for `predicted`."""
    used = sorted(set(choice.values()))
    counts = [f"{given.options[index].shown} for {list(choice.values()).count(index)}" for index in used]
    now, whole = predicted(given, specs, choice), predicted(given, specs, dict.fromkeys(specs, 0))
    return (
        f"{', '.join(counts)} of {len(choice)} gradients: {now.wire_bytes / 1e6:.3g} MB a step in the place of "
        f"{whole.wire_bytes / 1e6:.3g} MB, {1e3 * now.seconds:.3g} ms in the place of {1e3 * whole.seconds:.3g} ms "
        f"(measured: {8e-6 * given.link.bytes_per_second:.3g} Mbit/s, {1e3 * given.latency_seconds:.2g} ms)"
    )


def _elements(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements())
