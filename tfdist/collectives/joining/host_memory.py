"""Find the members that share a host, and the memory they share, by a proof in that memory."""

import contextlib
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.collectives import collective
from tfdist.collectives.joining.byte_exchange import Exchange, told_by_all
from tfdist.errors import UnsupportedError
from tfdist.native import engine as native

__all__ = ["machine", "shared", "tell_of_containers", "this_host"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


def shared(library: native.Engines, exchange: Exchange, rank: int, hosts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the number of the memory that this process shares with those of its host, and each rank's host.

    Where the memory of a host cannot be had, each of its processes counts as a host, and its first one says so.
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
    """Return each rank's host, where the processes of those without shared memory are alone."""
    without = {host for host, one in zip(hosts, told, strict=True) if not one["seen"]}
    return collective.hosts_of([(host, rank if host in without else None) for rank, host in enumerate(hosts)])


def machine() -> str:
    """Return what the processes that run on one kernel have in common."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return secrets.token_hex(16)


def this_host(machine: str) -> str:
    """Return what only processes that may share memory have in common: the kernel, the PID namespace, and the user."""
    with contextlib.suppress(OSError):
        return f"{machine} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    return secrets.token_hex(16)


def tell_of_containers(told: Sequence[Mapping[str, str]], rank: int) -> None:
    """Say once for a machine that some of its processes cannot share memory."""
    mine = [other for other, one in enumerate(told) if one["machine"] == told[rank]["machine"]]
    if rank == mine[0] and len({told[other]["host"] for other in mine}) > 1:
        _log.warning(
            "Processes %s run on one machine in several containers (PID namespaces) or for several users, and reduce "
            "over TCP, which takes longer. Give the containers one PID namespace (docker run --pid=host, Kubernetes "
            "shareProcessNamespace), or start the processes in one.",
            ", ".join(map(str, mine)),
        )
