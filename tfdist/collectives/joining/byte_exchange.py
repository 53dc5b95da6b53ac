"""Exchange bytes between members before their collective backend runs: each sends some and receives all.

Over notes (TensorFlow's coordination service has them) a round takes milliseconds, and nothing is traced or compiled.
Over another collective it takes what that one's `all_gather` does, which under TensorFlow is traced anew for each
length.
"""

import base64
import itertools
import json
import time
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from tfdist.collectives.collective import Collective
from tfdist.errors import DeadlineError, UnsupportedError, WorkerLostError

__all__ = ["Exchange", "agreed", "exchange_over", "exchange_over_notes", "told_by_all"]

#: takes this member's bytes, returns those of all, in the order of ranks
Exchange = Callable[[bytes], list[bytes]]


class Notes(Protocol):
    """Texts that members leave for each other by name."""

    def leave_note(self, key: str, text: str) -> None:
        """Leave a note for whoever waits for it now or later."""

    def wait_for_note(self, key: str, timeout_seconds: float) -> str | None:
        """Return the note's text once it was left; None if it was not left in time, or cannot be any more."""


def exchange_over_notes(notes: Notes, *, name: str, rank: int, size: int, timeout_seconds: float) -> Exchange:
    """Return how members tell each other bytes by notes.

    Example:
        >>> class Kept(dict):
        ...     leave_note = dict.__setitem__
        ...     def wait_for_note(self, key, timeout_seconds):
        ...         return self.get(key)
        >>> exchange_over_notes(Kept(), name="greeting", rank=0, size=1, timeout_seconds=1.0)(b"hello")
        [b'hello']
    """
    rounds = itertools.count()

    def exchange(mine: bytes) -> list[bytes]:
        prefix = f"{name}/{next(rounds)}"
        notes.leave_note(f"{prefix}/{rank}", base64.b64encode(mine).decode())
        begun = time.monotonic()
        told = []
        for member in range(size):
            left = timeout_seconds - (time.monotonic() - begun)
            note = notes.wait_for_note(f"{prefix}/{member}", max(left, 0.001))
            if note is None:
                raise _missing(member, rank, size, timeout_seconds, time.monotonic() - begun)
            told.append(base64.b64decode(note))
        return told

    return exchange


def _missing(member: int, rank: int, size: int, timeout_seconds: float, waited_seconds: float) -> Exception:
    what = f"member {rank} of {size} was waiting for member {member} in the start of the collectives"
    if waited_seconds < timeout_seconds:
        return WorkerLostError(
            f"{what} when the workers' connections ended. See the other workers' output for the first that failed, "
            "then start the job again."
        )
    return DeadlineError(
        f"{what}, which did not come within {timeout_seconds:g} s. See its output: every worker must make the same "
        "strategy. If it takes that long there, pass a larger timeout_seconds to the strategy."
    )


def exchange_over(collective: Collective) -> Exchange:
    """Return how members of another collective tell each other bytes."""

    def exchange(mine: bytes) -> list[bytes]:
        # each with its length before it, so that one gathering is enough
        framed = tf.io.decode_raw(len(mine).to_bytes(8, "big") + mine, tf.uint8)
        left, told = collective.all_gather(framed, key="native bytes").numpy().tobytes(), []
        while left:
            end = 8 + int.from_bytes(left[:8], "big")
            told.append(left[8:end])
            left = left[end:]
        return told

    return exchange


def told_by_all(exchange: Exchange, **said: str) -> list[dict[str, str]]:
    """Tell all members what this one has to say; return what all say, in the order of ranks."""
    return [json.loads(told) for told in exchange(json.dumps(said).encode())]


def agreed(exchange: Exchange, error: str, **said: str) -> list[dict[str, str]]:
    """Tell all members what this one has to say and what is wrong with it; return what all say."""
    every = told_by_all(exchange, error=error, **said)
    wrong = [f"member {rank}: {told['error']}" for rank, told in enumerate(every) if told["error"]]
    if wrong:
        raise UnsupportedError(
            "the native collectives need a C++ compiler and an address to listen at on every worker; "
            f"{'; '.join(wrong)}. Mend that, or choose another engine, such as TensorFlow's."
        )
    return every
