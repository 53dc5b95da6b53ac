"""Conversion of Arrow's dates, times and decimals into integers of a stated unit, exact or refused.

date                  days since 1970-01-01
timestamp             s, ms, us or ns since 1970-01-01; with a time zone "... since 1970-01-01 UTC"
time of day           s, ms, us or ns since midnight
duration              s, ms, us or ns
decimal, 18 digits    1e-2 where two digits follow the point; longer ones are text
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.sources.tables.arrow_types import arrow

_EPOCH = " since 1970-01-01"
_MIDNIGHT = " since midnight"
_UTC = " UTC"
_NANOSECONDS = {"days": 86_400_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_TIME = re.compile(rf"(?P<step>days|s|ms|us|ns)(?P<since>{_EPOCH}( UTC)?|{_MIDNIGHT})?")
_SCALE = re.compile(r"1e(?P<exponent>-?\d{1,2})")
_DAY = 86_400_000  # milliseconds, in which one of Arrow's types has its days
DIGITS = 18  # any such number is an int64


class MisfitError(Exception):
    """Raised if a value cannot be expressed in a unit; it has the value's place and the reason."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place, self.why = place, why


def is_counted(kind: Any) -> bool:
    """Return whether values of an Arrow type are counted in a unit: dates, times, durations, decimals."""
    types = arrow().types
    return bool(types.is_temporal(kind) or types.is_decimal(kind))


def unit_of(kind: Any) -> str:
    """Return the unit in which values of an Arrow type are counted; empty if there is none."""
    types = arrow().types
    if types.is_date(kind):
        return "days" + _EPOCH
    if types.is_timestamp(kind):
        return kind.unit + _EPOCH + (_UTC if kind.tz else "")
    if types.is_time(kind):
        return str(kind.unit) + _MIDNIGHT
    if types.is_duration(kind):
        return str(kind.unit)
    return f"1e{-kind.scale}" if types.is_decimal(kind) and kind.scale else ""


def type_of(unit: str) -> Any:
    """Return the Arrow type as which text in a unit is parsed; None if any number is allowed."""
    pyarrow = arrow()
    if scale := _SCALE.fullmatch(unit):
        exponent = int(scale["exponent"])
        return pyarrow.decimal128(DIGITS, -exponent) if -DIGITS <= exponent < 0 else None
    found = _TIME.fullmatch(unit)
    if found is None or found["since"] is None:
        return None
    if found["since"] == _MIDNIGHT:
        step = found["step"]
        return {"s": pyarrow.time32, "ms": pyarrow.time32}.get(step, pyarrow.time64)(step) if step != "days" else None
    if found["step"] == "days":
        return None if found["since"].endswith(_UTC) else pyarrow.date32()
    return pyarrow.timestamp(found["step"], "UTC" if found["since"].endswith(_UTC) else None)


def counted(array: Any, unit: str) -> Any:
    """Return the values of an Arrow array without nulls as counts of a unit: NumPy integers, or Python's if long."""
    own = unit_of(array.type)
    values = _numbers(array)
    wanted = unit or own
    up, down = _factors(own, wanted)
    if isinstance(values, list):  # Python's, so that none is too large on the way
        if odd := [place for place, value in enumerate(values) if value % down]:
            raise MisfitError(odd[0], f"no whole number of {wanted or 'ones'}")
        return [value * up // down for value in values]
    if down > 1 and (values % down).any():
        raise MisfitError(int(np.argmax(values % down != 0)), f"no whole number of {wanted or 'ones'}")
    most = ((1 << 63) - 1) // up
    beyond = (values > most) | (values < -most)
    if beyond.any():
        raise MisfitError(int(np.argmax(beyond)), f"which an int64 has no room for in {wanted or 'ones'}")
    return values * np.int64(up) // np.int64(down)


def _factors(own: str, wanted: str) -> tuple[int, int]:
    """Return the factor and the divisor that convert a count from one unit into another."""
    if own == wanted:
        return 1, 1
    ours, theirs = (_SCALE.fullmatch(unit or "1e0") for unit in (own, wanted))
    if ours and theirs:
        power = int(ours["exponent"]) - int(theirs["exponent"])
        return (10**power, 1) if power >= 0 else (1, 10**-power)
    mine, other = _TIME.fullmatch(own), _TIME.fullmatch(wanted)
    if not mine or not other or mine["since"] != other["since"]:
        raise MisfitError(0, f"counted in {own or 'ones'}, which are never {wanted}")
    a, b = _NANOSECONDS[mine["step"]], _NANOSECONDS[other["step"]]
    return (a // b, 1) if a >= b else (1, b // a)


def _numbers(array: Any) -> NDArray[np.int64] | list[int]:
    """Return the counts in the unit of the array's own type."""
    pyarrow, types = arrow(), arrow().types
    kind = array.type
    if not len(array):
        return np.empty(0, np.int64)
    if types.is_decimal(kind):
        if kind.precision > DIGITS:
            return [int(value.scaleb(kind.scale)) for value in array.to_pylist()]
        width = kind.byte_width
        held = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        low = np.ascontiguousarray(held.reshape(-1, width)[:, : min(width, 8)])
        return low.view(f"<i{min(width, 8)}").reshape(-1).astype(np.int64)
    wide = pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()
    found: NDArray[np.int64] = array.view(wide).to_numpy(zero_copy_only=False).astype(np.int64)
    if not types.is_date64(kind):
        return found
    if (odd := found % _DAY != 0).any():
        raise MisfitError(int(np.argmax(odd)), "no whole number of days")
    return found // _DAY
