"""Output that is held is shown when it is released, and never if it is not."""

import os
import threading

import pytest

from tfdist.jobs.output.output_forwarder import Pump


class Screen:
    """A screen that keeps the lines it is given."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.shown: list[bytes] = []
        self.noise = None

    def living(self, stream: int, worker: int, line: bytes) -> None:
        pass

    def lines(self, stream: int, worker: int, lines: list[bytes]) -> None:
        self.shown += lines


@pytest.mark.parametrize("released", [True, False])
def test_what_is_held(released: bool) -> None:
    screen = Screen()
    pump = Pump(screen, lambda: None, held=True)  # type: ignore[arg-type]
    reads, writes = os.pipe()
    pump.add(reads, stream=1, worker=1)
    with open(writes, "wb", buffering=0) as pipe:
        pipe.write(b"a line\n")
        assert not screen.shown
        if released:
            pump.release()
    pump.finish(give_up=lambda: False)
    os.close(reads)
    assert b"".join(screen.shown) == (b"a line" if released else b"")


def test_what_comes_after_the_end_of_a_worker_elsewhere_is_shown() -> None:
    screen = Screen()
    pump = Pump(screen, lambda: None)  # type: ignore[arg-type]
    reads, writes = os.pipe()
    pump.add(reads, stream=1, worker=1, ends_later=True)

    def write_the_rest(asked: list[int]) -> bool:
        """Write once `finish` waits, and has asked whether to give up."""
        asked.append(1)
        if len(asked) == 1:
            with open(writes, "wb") as pipe:
                pipe.write(b"x" * 3_000_000 + b"\n")
        return False

    asked: list[int] = []
    pump.finish(give_up=lambda: write_the_rest(asked))
    os.close(reads)
    assert asked
    assert sum(len(line) for line in screen.shown) == 3_000_000
