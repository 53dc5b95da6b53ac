"""The size of buckets: as requested, or chosen by the speed of the link."""

import logging
import math

from tfdist import validation
from tfdist.collectives.collective import Collective
from tfdist.collectives.link_measuring import measured_link
from tfdist.errors import ConfigError
from tfdist.planner.bucket_filling import BUCKET_BYTES

#: the default size of a bucket
DEFAULT_BYTES = BUCKET_BYTES
_SMALLEST, _LARGEST = 1 << 20, 64 << 20
# the share of a bucket's time that is latency
_LATENCY_PART = 0.1
_log = logging.getLogger(__name__)


def require_bytes(name: str, value: int | str) -> None:
    """Raise unless a value is a valid size of buckets."""
    if value == "auto":
        return
    if isinstance(value, str):
        raise ConfigError(
            f'{name} is {value!r}; it must be a number of bytes, such as {DEFAULT_BYTES}, or "auto".',
            name=name,
            received=value,
        )
    validation.integer(name, value, minimum=1)


def chosen_bytes(asked: int | str, collective: Collective) -> int:
    """Return the size of buckets, the same on all members; "auto" is measured, and all members call this."""
    if not isinstance(asked, str):
        return asked
    if collective.size == 1:
        return DEFAULT_BYTES
    link = measured_link(collective, DEFAULT_BYTES)
    part = 2 * (collective.size - 1) / collective.size  # of a bucket's bytes, which a member sends
    late = link.all_reduce_seconds(DEFAULT_BYTES, collective.size) - part * DEFAULT_BYTES / link.bytes_per_second
    chosen = suitable_bytes(late / part, link.bytes_per_second)
    if collective.rank == 0:
        _log.info("bucket_bytes is %d MiB: the link has %s.", chosen >> 20, link)
    return chosen


def suitable_bytes(latency_seconds: float, bytes_per_second: float) -> int:
    """Return the power of two from 1 to 64 MiB at which a tenth of a bucket's time is latency."""
    size = latency_seconds * bytes_per_second / _LATENCY_PART
    return min(max(1 << round(math.log2(max(size, 1.0))), _SMALLEST), _LARGEST)
