"""The exchange of bytes between members before their collective backend runs: each sends some and receives all.

Over notes (such as those of TensorFlow's coordination service) a round takes milliseconds and traces nothing. Over
another collective it is an `all_gather`, which TensorFlow traces anew for each length.
"""

import base64
import contextlib
import itertools
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from tfdist.collectives import collective
from tfdist.collectives.collective import Collective, Notes
from tfdist.errors import DeadlineError, UnsupportedError, WorkerLostError
from tfdist.native import engine as native

#: takes this member's bytes, returns those of all, in the order of ranks
Exchange = Callable[[bytes], list[bytes]]
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


def exchange_over_notes(notes: Notes, *, name: str, rank: int, size: int, timeout_seconds: float) -> Exchange:
    """Return a function by which members exchange bytes through notes."""
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
    """Return a function by which members exchange bytes through another collective."""

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
    """Exchange texts with all members; return them in the order of ranks."""
    return [json.loads(told) for told in exchange(json.dumps(said).encode())]


def agreed(exchange: Exchange, error: str, **said: str) -> list[dict[str, str]]:
    """Exchange texts with all members, and raise everywhere if one of them has an error."""
    every = told_by_all(exchange, error=error, **said)
    wrong = [f"member {rank}: {told['error']}" for rank, told in enumerate(every) if told["error"]]
    if wrong:
        raise UnsupportedError(
            "the native collectives need a C++ compiler and an address to listen at on every worker; "
            f"{'; '.join(wrong)}. Fix that, or choose another engine, such as TensorFlow's."
        )
    return every


def shared(library: native.Engines, exchange: Exchange, rank: int, hosts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the number of the memory that this host's processes share, and each rank's host.

    Without shared memory each process of a host counts as a host, and the first one warns.
    """
    mine = [index for index, host in enumerate(hosts) if host == hosts[rank]]
    makes, place = rank == mine[0], {"members": len(mine), "index": mine.index(rank)}
    nonce = secrets.randbits(128)
    segment, path, why = 0, "", ""
    try:
        if makes:
            segment, said = library.make(nonce, **place)
            path, why = (said, "") if segment else ("", said)
        told = told_by_all(exchange, path=path, nonce=f"{nonce:x}", why=why)
        if not makes and not told[mine[0]]["why"]:
            segment, why = library.open(told[mine[0]]["path"], int(told[mine[0]]["nonce"], 16), **place)
        told_by_all(exchange, why=why)  # now all have answered in the memory itself
        seen = segment and all(library.has_come(segment, index) for index in range(len(mine)))
        told = told_by_all(exchange, seen="yes" if seen else "", why=why)
    except BaseException:
        library.leave(segment, 0)
        raise
    if all(told[index]["seen"] for index in mine):
        return segment, _split(hosts, told)
    library.leave(segment, 0)
    reason = next((told[index]["why"] for index in mine if told[index]["why"]), "it is not the same for all")
    if makes:
        _log.warning(
            "The processes of this host reduce over TCP, which takes longer, because they share no memory: %s.", reason
        )
    segment, why = library.make(nonce)
    if not segment:
        raise UnsupportedError(f"this process has no memory for the native collectives ({why}). Give it more.")
    return segment, _split(hosts, told)


def _split(hosts: Sequence[int], told: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    without = {host for host, one in zip(hosts, told, strict=True) if not one["seen"]}
    return collective.hosts_of([(host, rank if host in without else None) for rank, host in enumerate(hosts)])


def machine() -> str:
    """Return an identity of the running kernel."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return secrets.token_hex(16)


def this_host(machine: str) -> str:
    """Return an identity of the processes that may share memory: by kernel, PID namespace, and user."""
    with contextlib.suppress(OSError):
        return f"{machine} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    return secrets.token_hex(16)


def tell_of_containers(told: Sequence[Mapping[str, str]], rank: int) -> None:
    """Warn once per machine that some of its processes cannot share memory."""
    mine = [other for other, one in enumerate(told) if one["machine"] == told[rank]["machine"]]
    if rank == mine[0] and len({told[other]["host"] for other in mine}) > 1:
        _log.warning(
            "Processes %s run on one machine in several containers (PID namespaces) or for several users, and reduce "
            "over TCP, which takes longer. Give the containers one PID namespace (docker run --pid=host, Kubernetes "
            "shareProcessNamespace), or start the processes in one.",
            ", ".join(map(str, mine)),
        )
