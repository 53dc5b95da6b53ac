"""Requests for many byte ranges: neighbours joined up to a limit, and answers cut up again."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfdist.errors import ShortReadError

Range = tuple[str, int, int]  # name, start, length
_Piece = tuple[int, int, int]  # number of the request, start and length in its answer


@dataclass(frozen=True)
class Plan:
    """The requests (name, start, length), which do not overlap, by name and start, and the pieces of each range."""

    requests: tuple[Range, ...]
    pieces: tuple[tuple[_Piece, ...], ...]

    def results(self, answers: Sequence[bytes]) -> list[bytes]:
        for wanted, answer in zip(self.requests, answers, strict=True):
            require_length(wanted, answer)
        return [_joined(answers, pieces) for pieces in self.pieces]


def require_length(wanted: Range, answer: bytes) -> None:
    name, start, length = wanted
    if len(answer) != length:
        raise ShortReadError(
            f"{name}: {len(answer)} bytes came for {length} from byte {start}. It was cut or replaced while it was "
            "read: start again.",
            received=len(answer),
            path=name,
        )


def coalesce(ranges: Sequence[Range], *, gap: int, largest: int) -> Plan:
    """Return the fewest requests that fetch all ``ranges``, which may overlap, be empty and come in any order."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for name, start, length in ranges:
        if length:
            wanted.setdefault(name, []).append((start, start + length))
    requests = [
        (name, start, stop - start)
        for name in sorted(wanted)
        for start, stop in _windows(_united(wanted[name]), gap, largest)
    ]
    keys = [(name, start) for name, start, _ in requests]
    return Plan(tuple(requests), tuple(tuple(_pieces(keys, requests, *wanted_range)) for wanted_range in ranges))


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same bytes as sorted spans that neither overlap nor touch."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _windows(spans: Sequence[tuple[int, int]], gap: int, largest: int) -> list[tuple[int, int]]:
    """Cover the spans from the left, each window as far as it may go: no other cover has fewer windows."""
    found: list[tuple[int, int]] = []
    for start, stop in spans:
        if found and start - found[-1][1] <= gap and start < found[-1][0] + largest:
            first = found[-1][0]
            found[-1] = (first, start := min(stop, first + largest))
        while start < stop:
            found.append((start, start := min(stop, start + largest)))
    return found


def _pieces(keys: list[tuple[str, int]], requests: list[Range], name: str, start: int, length: int) -> Iterable[_Piece]:
    number = bisect_right(keys, (name, start)) - 1
    while length > 0:
        _, first, size = requests[number]
        taken = min(length, first + size - start)
        yield number, start - first, taken
        number, start, length = number + 1, start + taken, length - taken


def _joined(answers: Sequence[bytes], pieces: Sequence[_Piece]) -> bytes:
    if len(pieces) == 1:
        number, start, length = pieces[0]
        return answers[number][start : start + length]
    return b"".join(memoryview(answers[number])[start : start + length] for number, start, length in pieces)
