"""Cuts a stream of bytes into lines, and finds what a progress bar shows now.

A carriage return starts a line anew: of the texts between carriage returns only the last one with content is shown, as
in a terminal. Bytes pass through as they are, whatever their encoding.

Example:
    >>> lines = LineBuffer()
    >>> lines.feed(b"one\\ntwo")
    [b'one']
    >>> lines.pending()
    b'two'
"""

LONGEST_LINE = 1 << 20  # bytes; a longer line is cut, so that memory stays bounded


class LineBuffer:
    """The lines of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read; return the lines that are complete now, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if b"\r" in self._rest:
            self._rest = _from_last_return(self._rest)
        while len(self._rest) > LONGEST_LINE:
            cut = _character_boundary(self._rest, LONGEST_LINE)
            lines.append(self._rest[:cut])
            self._rest = self._rest[cut:]
        return [visible(line) for line in lines]

    def pending(self) -> bytes:
        """Return what stands in the line that is not complete yet, as a terminal would show it."""
        return visible(self._rest)

    def finish(self) -> list[bytes]:
        """Return the last line if it had no end, and forget it."""
        rest, self._rest = self.pending(), b""
        return [rest] if rest else []


def visible(line: bytes) -> bytes:
    r"""Return what a terminal leaves visible of a line with carriage returns.

    Example:
        >>> visible(b"\r 50%\b\b\b\b\r100%\r")
        b'100%'
    """
    if b"\r" not in line:
        return line
    segments = [segment.replace(b"\b", b"") for segment in line.split(b"\r")]
    return next((segment for segment in reversed(segments) if segment), b"")


def _from_last_return(rest: bytes) -> bytes:
    """Drop the frames of a bar that newer ones replaced: the last with content stays, and what came after it."""
    before, _, after = rest.rpartition(b"\r")
    return visible(before) + b"\r" + after


def _character_boundary(data: bytes, cut: int) -> int:
    """Return the last place at or before ``cut`` that is not inside a UTF-8 character."""
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut
