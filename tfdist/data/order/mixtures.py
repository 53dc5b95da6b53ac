"""Orders of several sources in given shares, and of some of the examples that there are.

Which source a position belongs to, and how often the source came before, is computed as for weighted classes: a tree of
sources halves the set of them, and each node gives a child a fixed share of its turns, rounded. Tests pin the results.
"""

import bisect
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfdist.data.order.class_shares import kinds_of, laid_out, levels_of, met_of, spread
from tfdist.data.order.epoch_orders import Full, Ids, Order, Permutation, Sequential, permuted, round_keys
from tfdist.errors import ConfigError
from tfdist.native.compiled_orders import CompiledOrders

STOPS = ("first", "all", "never")
_WINDOW = 1 << 14  # positions that are laid out at a time
_FEW = 12  # sources, up to which a search for each is faster than sorting
_SHORT_BITS = 16  # of values of a window, which compiled code reads
_MOST_LAPS = 256  # of whole windows, for all of which compiled code is given keys; beside two of each source
_MOST = 1 << 50  # positions, of which a tree counts each


class Schedule:
    """The source at each position, and the number of its turn, whatever the position.

    `phases` has the position from which shares hold, the first 0, and the shares, one per source. In any range of a
    phase each source has its share to within a few positions. Up to ``end`` it has come exactly as often as `met` says.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[float]]], end: int = _MOST) -> None:
        self.sources = len(phases[0][1])
        self.changes = len(phases) > 1
        self._starts = [start for start, _ in phases]
        self._ends = [*self._starts[1:], end]
        self._levels = [levels_of(np.asarray(shares, np.float64) / max(shares)) for _, shares in phases]
        self._size = max(_WINDOW, self.sources)
        self._inside = lru_cache(maxsize=4)(self._met_inside)  # windows that follow each other share a bound
        self._before = [np.zeros(self.sources, np.int64)]
        for phase, (begin, end) in enumerate(zip(self._starts[:-1], self._ends[:-1], strict=True)):
            self._before.append(self._before[-1] + self._inside(phase, end - begin))
        self._window = lru_cache(maxsize=8)(self._laid_out)

    def met(self, position: int) -> Ids:
        """Return the number of times that each source has come before a position, int64 ``[sources]``."""
        phase = bisect.bisect_right(self._starts, position) - 1
        return self._before[phase] + self._inside(phase, position - self._starts[phase])

    def at(self, seed: int, lap: int, positions: Ids) -> tuple[Ids, Ids]:
        """The source at each position, and its turn; ``lap`` arranges each window anew and changes no count."""
        kinds, turns = np.empty(len(positions), np.min_scalar_type(self.sources)), np.empty_like(positions)
        breaks = (np.flatnonzero(np.diff(positions) != 1) + 1).tolist()  # mostly none
        for begin, end in itertools.pairwise([0, *breaks, len(positions)]):
            at = begin
            while at < end:
                position = int(positions[at])
                phase = bisect.bisect_right(self._starts, position) - 1
                window, place = divmod(position - self._starts[phase], self._size)
                count = min(end - at, self._size - place, self._ends[phase] - position)
                found, here = self._window(seed, lap, phase, window), slice(place, place + count)
                kinds[at : at + count], turns[at : at + count] = found[0][here], found[1][here]
                at += count
        return kinds, turns

    def windows(self, seed: int, lap: int, begin: int, count: int) -> tuple[list["Window"], Ids]:
        """The windows that positions in a row are in, and how often each source comes before each and after the last.

        The counts are ``[windows + 1, sources]``.
        """
        found, met, at, end = list[Window](), list[Ids](), begin, begin + count
        while at < end:
            phase = bisect.bisect_right(self._starts, at) - 1
            start, stop = self._starts[phase], min(end, self._ends[phase])
            window = (at - start) // self._size
            bounds = np.arange(window, (stop - 1 - start) // self._size + 2) * self._size
            bounds = np.minimum(bounds, self._ends[phase] - start)
            for number, (low, high) in enumerate(itertools.pairwise(bounds.tolist()), start=window):
                skip = max(0, at - start - low)
                taken = min(high, stop - start) - low - skip
                found.append(_window(high - low, seed, lap, phase, number, skip=skip, taken=taken))
            # the last count of a phase is the first of the next one
            met = [*met[:-1], *(self._before[phase] + self._met_inside(phase, bounds))]
            at = stop
        return found, np.array(met)

    def run(self, seed: int, lap: int, begin: int, count: int) -> tuple[Ids, Ids]:
        """The sources of positions that follow each other, and how often each has come before them, ``[sources]``."""
        windows, met = self.windows(seed, lap, begin, count)
        kinds = [kinds_of(a, b, _spread(one, seed)) for a, b, one in zip(met, met[1:], windows, strict=False)]
        first = met[0] + np.bincount(kinds[0][: windows[0].skip], minlength=self.sources)
        spans = [slice(one.skip, one.skip + one.taken) for one in windows]
        return np.concatenate([found[span] for found, span in zip(kinds, spans, strict=True)]), first

    def _met_inside(self, phase: int, positions: int | Ids) -> Ids:
        return met_of(self._levels[phase], positions, "sources", phase)[..., : self.sources]

    def _laid_out(self, seed: int, lap: int, phase: int, window: int) -> tuple[Ids, Ids]:
        begin, last = window * self._size, self._ends[phase] - self._starts[phase]
        end = min(begin + self._size, last)
        before, after = (self._before[phase] + self._inside(phase, at) for at in (begin, end))
        return laid_out(before, after, _spread(_window(end - begin, seed, lap, phase, window), seed))


class Window(NamedTuple):
    """The order of sources in a window, and which of its positions are asked for: `taken` after the first `skip`.

    Windows of 2^bits values share a table of an even order, in which each flips some digits of places and of values.
    """

    bits: int
    places: int
    values: int
    size: int
    skip: int
    taken: int


def _window(size: int, seed: int, *window: int, skip: int = 0, taken: int = 0) -> Window:
    bits = (size - 1).bit_length()
    places, values = (word & (1 << bits) - 1 for word in round_keys("mixture", seed, *window)[:2])
    return Window(bits, places, values, size, skip, taken)


def _spread(window: Window, seed: int) -> Ids:
    """A random and even order of the values below the size of a window."""
    table = _table(window.bits, seed)
    found = table.take(np.arange(len(table)) ^ window.places) ^ table.dtype.type(window.values)
    return found if window.size == len(table) else found[found < window.size]


@lru_cache(maxsize=32)
def _table(bits: int, seed: int) -> NDArray[Any]:
    return spread(1 << bits, "mixture", seed).astype(np.uint16 if bits <= _SHORT_BITS else np.uint32)


def epoch_of(schedule: Schedule, sizes: Sequence[int], stop: str) -> int:
    """Number of positions of an epoch that stops when the first source has no more examples, or when all have none."""
    drawn = schedule.met(_MOST) > 0
    limits = np.array(sizes, np.int64)

    def is_over(position: int) -> bool:
        met = schedule.met(position)
        return bool(((met > limits) & drawn).any() if stop == "first" else ((met >= limits) | ~drawn).all())

    low, high = 0, 1
    while not is_over(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_over(middle) else (middle, high)
    return low if stop == "first" else high


class Mixed:
    """Examples of several sources, each with an order of its own, in the shares of a schedule.

    `stop` is "first" or "all": each epoch begins with an order of its own for each source. Or it is "never": an epoch
    has `examples` positions, and the next one continues in each source.
    """

    def __init__(self, schedule: Schedule, orders: Sequence[Order], stop: str, examples: int, name: str) -> None:
        self.examples = examples
        self.name = name
        self._schedule = schedule
        self._orders = list(orders)
        self._begins = np.cumsum([0, *(order.examples for order in orders)], dtype=np.int64)
        self._runs_on = stop == "never"
        met = schedule.met(examples)
        self._laps = [max(1, -(-int(turns) // max(1, o.examples))) for turns, o in zip(met, orders, strict=True)]
        self._full = [one for one in orders if isinstance(one, Full)]
        self._compiled = self._full[0].compiled if self._full else None
        is_known = len(self._full) == len(orders) <= 1 << _SHORT_BITS
        self._compiled_run = self._compiled if is_known else None

    def frequencies(self) -> NDArray[np.float64]:
        """Return the frequency of each example of the sources in the long run; all add up to 1."""
        if self._schedule.changes:
            raise ConfigError(
                "weights of the mixture change, so what a model has seen depends on when training ends. Ask for the "
                "prior of a mixture with the weights of one stretch.",
                name="weights",
            )
        end = _MOST if self._runs_on else self.examples
        found = []
        for turns, order in zip((self._schedule.met(end) / end).tolist(), self._orders, strict=True):
            often = np.full(order.examples, turns / max(1, order.examples))
            if isinstance(order, Sequential) and not self._runs_on:  # each epoch begins with the first ones
                laps, rest = divmod(round(turns * end), order.examples)
                often = (laps + (np.arange(order.examples) < rest)) / end
            found.append(often)
        return np.concatenate(found)

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        positions = np.asarray(positions, np.int64)
        lap, shift = (0, epoch * self.examples) if self._runs_on else (epoch, 0)
        begin, count = int(positions[0]) if len(positions) else 0, len(positions)
        is_run = count > 0 and bool((positions == np.arange(begin, begin + count)).all())
        if is_run and self._compiled_run is not None:
            run = self._run(self._compiled_run, seed, epoch, *self._schedule.windows(seed, lap, begin + shift, count))
            if run is not None:
                return run
        if is_run:
            turns = self._turns_of_run(*self._schedule.run(seed, lap, begin + shift, count))
        else:
            turns = self._turns(*self._schedule.at(seed, lap, positions + shift))
        found = np.empty_like(positions)
        full: list[tuple[Permutation, Ids, Ids, int]] = []  # computed together
        for kind, here, mine in turns:
            order, first = self._orders[kind], self._begins[kind]
            low, high = int(mine.min()) // order.examples, int(mine.max()) // order.examples
            for number in range(low, high + 1):
                start = number * order.examples
                now = slice(None) if low == high else np.flatnonzero((mine >= start) & (mine < start + order.examples))
                places, key = mine[now] - start, self._key(seed, epoch, kind, number)
                if isinstance(order, Full):
                    full.append((order.permutation(*key), places, here[now], first))
                else:
                    found[here[now]] = first + order.ids(seed=key[0], epoch=key[1], positions=places)
        values = permuted([one for one, *_ in full], [places for _, places, *_ in full], self._compiled)
        for (_, _, here, first), ids in zip(full, values, strict=True):
            found[here] = first + ids
        return found

    def _key(self, seed: int, epoch: int, kind: int, lap: int) -> tuple[int, int]:
        """The seed and the epoch of a lap of a source."""
        return int(round_keys("source", seed, kind)[0]), lap if self._runs_on else lap + epoch * self._laps[kind]

    def _run(self, compiled: CompiledOrders, seed: int, epoch: int, windows: Sequence[Window], met: Ids) -> Ids | None:
        """The examples of positions that follow each other, in compiled code; None if sources have too many laps."""
        sizes = np.maximum(np.diff(self._begins), 1)
        lows, ends = met[0] // sizes, np.where(met[-1] > met[0], (met[-1] - 1) // sizes + 1, met[0] // sizes)
        if (ends - lows).sum() > _MOST_LAPS + 2 * len(sizes):
            return None
        laps = [
            order.permutation(*self._key(seed, epoch, kind, lap))
            for kind, (order, low, end) in enumerate(zip(self._full, lows.tolist(), ends.tolist(), strict=True))
            for lap in range(low, end)
        ]
        return compiled.mixed(
            [(_table(window.bits, seed), *window) for window in windows],
            met,
            firsts=self._begins[:-1],
            sizes=sizes,
            begins=np.cumsum([0, *(ends - lows)], dtype=np.int64),
            numbers=lows,
            keys=np.array([lap.keys for lap in laps], np.uint32),
            tables=[lap.table for lap in laps],
        )

    def _turns(self, kinds: NDArray[Any], turns: Ids) -> Iterator[tuple[int, Ids, Ids]]:
        """Each source that some positions have, which of them it has, and the number of its turn at each."""
        for kind, here in _places(kinds, self._schedule.sources):
            yield kind, here, turns[here]

    def _turns_of_run(self, kinds: NDArray[Any], first: Ids) -> Iterator[tuple[int, Ids, Ids]]:
        """Do the same for positions that follow each other, so that the turns of a source do as well."""
        for kind, here in _places(kinds, self._schedule.sources):
            turn = int(first[kind])
            yield kind, here, np.arange(turn, turn + len(here))


def _places(kinds: NDArray[Any], sources: int) -> Iterator[tuple[int, Ids]]:
    """Each source that occurs, and its places."""
    if sources <= _FEW:  # counting them first takes as long as the search for all of four
        places = ((kind, np.flatnonzero(kinds == kind)) for kind in range(sources))
        yield from ((kind, here) for kind, here in places if len(here))
        return
    counts = np.bincount(kinds)
    order, ends = np.argsort(kinds, kind="stable"), np.cumsum(counts)
    yield from ((kind, order[ends[kind] - counts[kind] : ends[kind]]) for kind in np.flatnonzero(counts).tolist())


class Chosen:
    """An order of some of the examples that there are, whose numbers are given."""

    def __init__(self, order: Order, numbers: NDArray[np.int64]) -> None:
        self.examples = order.examples
        self.name = f"{order.name}:of:{hashlib.sha256(numbers.astype('<i8').tobytes()).hexdigest()[:16]}"
        #: the order of the chosen examples, numbered from 0
        self.inner = order
        self.numbers = numbers

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        return self.numbers[self.inner.ids(seed=seed, epoch=epoch, positions=positions)]
