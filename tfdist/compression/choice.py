"""Which codec makes a step shortest: pure functions of what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.compression.codec import Codec

# A codec must save this part of the time of a gradient: what is not compressed travels while others are computed.
_MARGIN = 0.2
# A network that is so many times as fast or as slow is another one.
_CHANGED = 1.5
# How many messages one after the other: the two hops, or the two factors of PowerSGD.
_HOPS = 2


@dataclass(frozen=True)
class Link:
    """What is between workers.

    Attributes:
        latency_seconds: of a small all_reduce.
        seconds_per_byte: of what a member sends.
    """

    latency_seconds: float
    seconds_per_byte: float

    def is_like(self, other: "Link") -> bool:
        """Return whether a choice for the one holds for the other.

        Example:
            >>> Link(1e-3, 1e-8).is_like(Link(1.2e-3, 0.9e-8)), Link(1e-3, 1e-8).is_like(Link(1e-3, 1e-7))
            (True, False)
        """
        now, then = (one.seconds_per_byte for one in (self, other))
        return then / _CHANGED <= now <= then * _CHANGED


@dataclass(frozen=True)
class Prediction:
    """What a step's reduction is predicted to cost.

    Attributes:
        seconds: of encoding, what travels, and decoding.
        wire_bytes: what a member sends.
    """

    seconds: float
    wire_bytes: float


def predicted(
    codec: Codec, spec: tf.TensorSpec, link: Link, seconds_per_element: float, *, members: int, bucket_bytes: int
) -> Prediction:
    """Return what one gradient costs with a codec.

        t = c n + h a S / B + w b

    with c the seconds that encoding and decoding take for each of n elements, h messages of latency a for each bucket
    of B bytes of which the gradient has S, and w bytes that travel in b seconds each.

    Args:
        codec: an option.
        spec: of the gradient.
        link: between members.
        seconds_per_element: c.
        members: number of members.
        bucket_bytes: B.

    Example:
        >>> from tfdist.compression import QSGD
        >>> spec = tf.TensorSpec([1024, 1024], tf.float32)
        >>> round(predicted(QSGD(bits=8), spec, Link(0.0, 8e-8), 0.0, members=2, bucket_bytes=1 << 22).seconds, 3)
        0.085
    """
    elements = int(spec.shape.num_elements())
    hops = 1 if codec.accuracy in ("lossless", "rounded") else _HOPS
    wire = codec.wire_bytes(spec, members)
    latency = hops * link.latency_seconds * elements * spec.dtype.size / bucket_bytes
    return Prediction(seconds_per_element * elements + latency + wire * link.seconds_per_byte, wire)


def chosen(
    options: Sequence[Codec],
    specs: Mapping[int, tf.TensorSpec],
    link: Link,
    seconds_per_element: Sequence[float],
    *,
    members: int,
    bucket_bytes: int,
) -> dict[int, int]:
    """Return the index of the best option for each gradient; 0, no compression, where another one saves too little.

    Args:
        options: the first one is no compression.
        specs: of gradients, by their places.
        link: between members.
        seconds_per_element: what each option computes.
        members: number of members.
        bucket_bytes: how much travels together.

    Example:
        >>> from tfdist.compression import QSGD, Whole
        >>> specs = {0: tf.TensorSpec([1024, 1024], tf.float32), 1: tf.TensorSpec([3, 3], tf.float32)}
        >>> slow, fast = Link(1e-3, 8e-8), Link(1e-4, 1e-10)
        >>> costs = dict(seconds_per_element=[0.0, 1e-8], members=2, bucket_bytes=1 << 22)
        >>> [chosen([Whole(), QSGD(bits=8)], specs, link, **costs) for link in (slow, fast)]
        [{0: 1, 1: 0}, {0: 0, 1: 0}]
    """
    choice = {}
    for place, spec in specs.items():
        seconds = [
            predicted(codec, spec, link, cost, members=members, bucket_bytes=bucket_bytes).seconds
            for codec, cost in zip(options, seconds_per_element, strict=True)
        ]
        best = min(range(len(options)), key=seconds.__getitem__)
        choice[place] = best if seconds[best] < (1 - _MARGIN) * seconds[0] else 0
    return choice


def described(
    options: Sequence[Codec],
    specs: Mapping[int, tf.TensorSpec],
    choice: Mapping[int, int],
    link: Link,
    seconds_per_element: Sequence[float],
    *,
    members: int,
    bucket_bytes: int,
) -> str:
    """Return a choice in words: codecs, bytes and times; arguments as for `chosen`, and what it gave."""
    used = sorted(set(choice.values()))
    counts = [f"{options[index].shown} for {sum(1 for one in choice.values() if one == index)}" for index in used]

    def total(index_of: Mapping[int, int]) -> Prediction:
        costs = [
            predicted(
                options[index_of[place]],
                spec,
                link,
                seconds_per_element[index_of[place]],
                members=members,
                bucket_bytes=bucket_bytes,
            )
            for place, spec in specs.items()
        ]
        return Prediction(sum(one.seconds for one in costs), sum(one.wire_bytes for one in costs))

    now, whole = total(choice), total(dict.fromkeys(specs, 0))
    return (
        f"{', '.join(counts)} of {len(choice)} gradients: {now.wire_bytes / 1e6:.3g} MB a step in the place of "
        f"{whole.wire_bytes / 1e6:.3g} MB, {1e3 * now.seconds:.3g} ms in the place of {1e3 * whole.seconds:.3g} ms "
        f"(measured: {8e-6 / link.seconds_per_byte:.3g} Mbit/s, {1e3 * link.latency_seconds:.2g} ms)"
    )
