"""Mixtures of permuted sources, one position after another in plain Python: what every faster way must compute."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.data.order.class_shares import spread
from tfdist.data.order.epoch_orders import TABLE, Permutation, round_keys
from tfdist.data.order.mixtures import Schedule, epoch_of

_WINDOW = 1 << 14
_WORD = (1 << 32) - 1
#: phases, sizes, what ends an epoch, and the positions of an epoch that does not end by itself
CASES: dict[str, tuple[Any, Sequence[int], str, int]] = {
    "equal shares": ([(0, (1, 1, 1, 1))], (10_007, 10_009, 10_037, 10_039), "first", 0),
    "unequal shares of primes": ([(0, (0.55, 0.25, 0.15, 0.05))], (30_011, 20_011, 7001, 5003), "never", 90_001),
    "every example": ([(0, (5, 3, 0, 1))], (9001, 4099, 500, 4093), "all", 0),
    "weights that change": (
        [(0, (5, 3, 2, 1)), (290_000, (1, 1, 0, 2)), (300_001, (0, 1, 3, 1)), (300_002, (0, 0, 0, 1))],
        (30_011, 20_011, 7001, 5003),
        "never",
        90_001,
    ),
    "300 sources": ([(0, range(1, 301))], range(4000, 4300), "never", 50_021),
    "small sources": ([(0, (1, 2, 3))], (1, 3, 7), "never", 701),
    "many laps": ([(0, (1, 1, 2))], (150, 4099, 601), "never", 20_011),
    "one source": ([(0, (1,))], (5003,), "all", 0),
}


def epoch_length(phases: Any, sizes: Sequence[int], stop: str, examples: int) -> int:
    """The number of positions of an epoch."""
    return examples or epoch_of(Schedule(phases), sizes, stop)


def slow_ids(
    phases: Any, sizes: Sequence[int], stop: str, length: int, *, seed: int, epoch: int, positions: range
) -> list[int]:
    """The examples at positions; how often each source came before a window is asked of `Schedule.met`."""
    end = None if stop == "never" else length
    schedule = Schedule(phases) if end is None else Schedule(phases, end)
    lap, shift = (0, epoch * length) if end is None else (epoch, 0)
    laps = [max(1, -(-int(turns) // size)) for turns, size in zip(schedule.met(length), sizes, strict=True)]
    firsts = np.cumsum([0, *sizes]).tolist()
    found = []
    kept: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for position in positions:
        phase = max(number for number, (start, _) in enumerate(phases) if start <= position + shift)
        start = phases[phase][0]
        stops = [begin for begin, _ in phases[phase + 1 :]] + [end or 1 << 50]
        width = max(_WINDOW, len(sizes))
        window, place = divmod(position + shift - start, width)
        if (phase, window) not in kept:
            low, high = start + window * width, min(start + (window + 1) * width, stops[0])
            kept[phase, window] = _laid_out(schedule, seed, lap, phase, window, low, high)
        kinds, turns = kept[phase, window]
        kind, (number, inside) = kinds[place], divmod(turns[place], sizes[kinds[place]])
        key = ("full", round_keys("source", seed, kind)[0], number + (0 if end is None else epoch * laps[kind]))
        found.append(firsts[kind] + slow_value(sizes[kind], inside, *key))
    return found


def _laid_out(
    schedule: Schedule, seed: int, lap: int, phase: int, window: int, low: int, high: int
) -> tuple[list[int], list[int]]:
    """The source of each position of a window, and its turn."""
    before, after = schedule.met(low), schedule.met(high)
    of_values = [kind for kind, count in enumerate((after - before).tolist()) for _ in range(count)]
    bits = (high - low - 1).bit_length()
    table = spread(1 << bits, "mixture", seed).tolist()
    places, values = (word % (1 << bits) for word in round_keys("mixture", seed, lap, phase, window)[:2])
    shuffled = [table[place ^ places] ^ values for place in range(1 << bits)]
    kinds = [of_values[value] for value in shuffled if value < high - low]
    met, turns = before.tolist(), []
    for kind in kinds:
        turns.append(met[kind])
        met[kind] += 1
    return kinds, turns


def slow_value(size: int, position: int, *key: int | str) -> int:
    """The value of a permutation at a position."""
    if size <= TABLE:
        table = Permutation(size, *key).table
        assert table is not None
        return int(table[position])
    bits = (size - 1).bit_length()
    shift = bits // 2
    widths = (1 << (bits - shift)) - 1, (1 << shift) - 1
    value = position
    while True:
        left, right = value >> shift, value & widths[1]
        for turn, word in enumerate(round_keys(*key)):
            mixture = right + word & _WORD
            mixture = (mixture ^ mixture >> 16) * 0x85EBCA6B & _WORD
            mixture = (mixture ^ mixture >> 13) * 0xC2B2AE35 & _WORD
            mixture ^= mixture >> 16
            left, right = right, left ^ mixture & widths[turn % 2]
        value = left << shift | right
        if value < size:
            return value


def stretches(length: int) -> list[range]:
    """The beginning, the middle, across windows, and the end of an epoch: where runs begin and resume."""
    begins = (0, length // 2, _WINDOW - 60, length - 40)
    return [range(max(0, begin), min(length, begin + 120)) for begin in begins if begin < length]
