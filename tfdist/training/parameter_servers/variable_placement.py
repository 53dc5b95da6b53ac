"""The assignment of variables to parameter servers: the largest first, each to the server with the fewest bytes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A variable, or a part of one, on a parameter server.

    Attributes:
        part: the number of the part, from 0; 0 for a variable in one piece.
        bytes: the size of the piece in bytes.
    """

    path: str
    part: int = 0
    parts: int = 1
    shape: tuple[int, ...]
    bytes: int
    server: int


def least_loaded(loads: Sequence[int]) -> int:
    return min(range(len(loads)), key=lambda server: (loads[server], server))


def largest_first(sizes: Sequence[int], servers: int, held: Sequence[int] = ()) -> list[int]:
    """Return a server for each size: the largest is placed first, each on the server with the fewest bytes.

    The fullest server holds at most 4/3 - 1/(3 servers) of its bytes in the best placement.

    Example:
        >>> largest_first([1, 7, 5, 3], 2)
        [0, 0, 1, 1]

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969.
    """
    loads = list(held) or [0] * servers
    placed = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        placed[index] = least_loaded(loads)
        loads[placed[index]] += sizes[index]
    return placed


def boundaries(rows: int, parts: int) -> list[int]:
    """Return the first row of each part, and the number of rows; sizes differ by at most one.

    Example:
        >>> boundaries(10, 3)
        [0, 4, 7, 10]
    """
    parts = max(1, min(parts, rows))
    sizes = [rows // parts + (part < rows % parts) for part in range(parts)]
    return [sum(sizes[:part]) for part in range(parts + 1)]


def table(pieces: Iterable[Piece], servers: int) -> str:
    """Return a text table of the pieces, and the bytes on each server.

    Example:
        >>> print(table([Piece(path="dense/kernel", shape=(2, 3), bytes=24, server=1)], 2))
        variable      part  shape   server     bytes
        dense/kernel     -  (2, 3)       1        24
        <BLANKLINE>
        server 0: 0 bytes; server 1: 24 bytes
    """
    pieces = list(pieces)
    names = max([8, *(len(piece.path) for piece in pieces)])
    shapes = max([6, *(len(str(piece.shape)) for piece in pieces)])
    lines = [f"{'variable':<{names}}  part  {'shape':<{shapes}}  server  {'bytes':>8}"]
    for piece in pieces:
        part = f"{piece.part + 1}/{piece.parts}" if piece.parts > 1 else "-"
        lines.append(
            f"{piece.path:<{names}}  {part:>4}  {piece.shape!s:<{shapes}}  {piece.server:>6}  {piece.bytes:>8}"
        )
    totals = loads(pieces, servers)
    return "\n".join([*lines, "", "; ".join(f"server {s}: {totals[s]} bytes" for s in range(servers))])


def loads(pieces: Iterable[Piece], servers: int) -> Mapping[int, int]:
    totals = dict.fromkeys(range(servers), 0)
    for piece in pieces:
        totals[piece.server] += piece.bytes
    return totals
