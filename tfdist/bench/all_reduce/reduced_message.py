"""The messages of an all-reduce: sizes, numbers whose sums are known, and the bandwidths that nccl-tests print."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.errors import ConfigError
from tfdist.validation import shown_bytes

if TYPE_CHECKING:
    import numpy as np


_ELEMENT_BYTES = 4
_BYTES_PER_MEASUREMENT = 64 << 20
_MOST_CALLS, _FEWEST_CALLS = 50, 1
_LARGEST = 125


def sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return sizes in bytes from the smallest to the largest, each ``factor`` times the one before.

    Example:
        >>> sizes(4096, 262144, 8)
        (4096, 32768, 262144)
    """
    if smallest % _ELEMENT_BYTES:
        raise ConfigError(f"the smallest size is {smallest} bytes; it must be a multiple of 4, the bytes of a float32.")
    if smallest > largest:
        raise ConfigError(
            f"the smallest size is {shown_bytes(smallest)}, above the largest, {shown_bytes(largest)}; exchange them."
        )
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return tuple(found)


def calls(number_of_bytes: int) -> int:
    """Return the number of all-reduces in a measurement: many short ones, few long ones."""
    return max(_FEWEST_CALLS, min(_MOST_CALLS, _BYTES_PER_MEASUREMENT // number_of_bytes))


def seconds(times: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the mean seconds of a call, from the last worker's tensors to the last worker's sums.

    Example:
        >>> seconds([[(0.0, 3.0), (5.0, 7.0)], [(1.0, 2.0), (4.0, 6.0)]])
        2.0
    """
    of_calls = list(zip(*times, strict=True))
    return sum(max(end for _, end in call) - max(begin for begin, _ in call) for call in of_calls) / len(of_calls)


def bus_bandwidth(number_of_bytes: int, seconds: float, workers: int) -> float:
    """Return the bytes per second that each link carries in a perfect all-reduce of that duration.

    A worker must send 2 S (n - 1) / n bytes, whatever the algorithm, so this can be compared with the speed of the
    wire. The algorithm's bandwidth is S / t. With two workers both are equal.

    Example:
        >>> bus_bandwidth(1000, 1.0, 4)
        1500.0
    """
    return number_of_bytes / seconds * 2 * (workers - 1) / workers


def values(count: int, *, tensor: int, worker: int) -> "np.ndarray":
    """Return float32 integers that depend on position, tensor and worker, and whose sums are exact."""
    import numpy as np

    mixed = np.arange(count, dtype=np.uint32)
    mixed += np.uint32(7919 * worker + 104_729 * tensor + 1)
    mixed *= np.uint32(2_654_435_761)
    mixed >>= np.uint32(16)
    mixed %= np.uint32(2 * _LARGEST + 1)
    return mixed.astype(np.float32) - _LARGEST
