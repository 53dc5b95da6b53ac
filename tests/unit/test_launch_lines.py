"""Lines of a stream: whole whatever the pieces it comes in, bars as a terminal shows them, memory bounded."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.jobs.output.output_forwarder import LONGEST_LINE, LineBuffer, visible


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in pairwise(ends)]


def lines_of(pieces: list[bytes]) -> list[bytes]:
    buffer = LineBuffer()
    return [line for piece in pieces for line in buffer.feed(piece)] + buffer.finish()


@given(st.lists(st.binary(max_size=8).filter(lambda b: not set(b) & set(b"\r\n\b"))), st.lists(st.integers(0, 99)))
def test_lines_do_not_depend_on_the_pieces(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert lines_of(cut(data, places)) == lines


@given(st.text("ab\r\n\b", max_size=30).map(str.encode), st.lists(st.integers(0, 99)))
def test_bars_do_not_depend_on_the_pieces(data: bytes, places: list[int]) -> None:
    assert lines_of(cut(data, places)) == lines_of([data])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", b"plain"),
        (b"with a \b backspace but no bar", b"with a \b backspace but no bar"),
        (b"windows\r", b"windows"),
        (b"\r 50%\b\b\b\b\r100%", b"100%"),
        (b"1%\r2%\r", b"2%"),
        (b"\r\r", b""),
        (b"\xff\r\xfe", b"\xfe"),
    ],
)
def test_visible(line: bytes, shown: bytes) -> None:
    assert visible(line) == shown


def test_pending_is_what_a_bar_shows_now() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"done\n\r1 of 3") == [b"done"]
    assert buffer.pending() == b"1 of 3"
    assert buffer.feed(b"\b\b\b\b\b\b\r2 of 3") == []
    assert buffer.pending() == b"2 of 3"
    assert buffer.feed(b"\r") == []
    assert buffer.pending() == b"2 of 3"
    assert buffer.feed(b"\n") == [b"2 of 3"]
    assert buffer.pending() == b""
    assert buffer.finish() == []


def test_a_bar_of_any_length_of_time_needs_no_memory() -> None:
    buffer = LineBuffer()
    for step in range(2000):
        assert buffer.feed(b"\r" + b"=" * 1000 + b"%d" % step) == []
    assert buffer.pending().endswith(b"1999")
    assert len(buffer._rest) < 2100


def test_a_line_without_end_is_cut_between_characters() -> None:
    text = "ü" * LONGEST_LINE
    pieces = lines_of([b"x" + text.encode()])
    assert b"".join(pieces) == b"x" + text.encode()
    assert len(pieces) == 3
    assert all(piece.decode() for piece in pieces)
