"""The collectives engine in C++, as Python starts and stops it; its operations are TensorFlow ops."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfdist.native import library
from tfdist.native.library import load, module_of

#: the beginning of errors of operations once the engine has ended, whatever the cause
BROKEN = "The native collectives have ended: "
#: the beginning of errors if members have run different operations under one key
DIFFERENT = "Members do different things: "
#: a part of errors if a member is alive but has not come to an operation in time
LATE = " is not done within "

#: the algorithms of an all_reduce between hosts, in the order of plan.h; without a name, the size decides
ALGORITHMS = ("one-shot", "two-shot", "ring", "halving-doubling", "double-tree")

_OPS = (
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "all_gather",
    "broadcast",
    "hand_out",
    "send_start",
    "send_wait",
    "receive",
)
_WHY_BYTES = 1000


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of a job, equal on all of them except for the rank."""

    rank: int
    hosts: tuple[int, ...]  # the number of each rank's host
    indexes: tuple[int, ...]  # the index of each rank among the members on its host
    addresses: tuple[tuple[str, int], ...]  # the address at which each rank listens for ranks on other hosts
    key: bytes  # the job's secret, which authenticates connections
    silent_seconds: float  # how long a member may give no sign of life, in seconds
    timeout_seconds: float  # how long an operation may take, in seconds; 0: no limit


class Engines:
    """The library of the collectives; `engines` returns the one of this process."""

    def __init__(self, path: Path) -> None:
        self.ops = module_of(path, [f"tfdist_{order}{name}" for name in _OPS for order in ("", "ordered_")])
        number, text = ctypes.c_int64, ctypes.c_char_p
        self._library = ctypes.CDLL(str(path))
        for name, result, *arguments in (
            ("make", number, *[ctypes.c_uint64] * 4, text, ctypes.c_size_t),
            ("open", number, text, *[ctypes.c_uint64] * 4, text, ctypes.c_size_t),
            ("has_come", ctypes.c_bool, number, ctypes.c_uint64),
            ("listen", number, text, ctypes.c_void_p, text, ctypes.c_size_t),
            (
                *("start", number, number, *[ctypes.c_int32] * 2, *[ctypes.c_void_p] * 2),
                *(number, *[ctypes.c_void_p] * 2, text, ctypes.c_size_t, *[ctypes.c_double] * 2),
            ),
            ("replicas", None, ctypes.c_int32, ctypes.c_void_p),
            ("choose", ctypes.c_bool, number, ctypes.c_int32, text, ctypes.c_size_t),
            ("leave", None, number, number),
            ("waits_for", None, number, text, ctypes.c_size_t),
            ("abort", None, number, text),
            ("stop", None, number),
        ):
            function = getattr(self._library, f"tfdist_collectives_{name}")
            function.restype, function.argtypes = result, arguments

    def make(self, nonce: int, *, members: int = 1, index: int = 0) -> tuple[int, str]:
        """Create the memory that the members of a host share; it ends with the last of their processes."""
        return self._joined("make", nonce, members, index)

    def open(self, path: str, nonce: int, *, members: int, index: int) -> tuple[int, str]:
        return self._joined("open", nonce, members, index, path.encode())

    def _joined(self, name: str, nonce: int, members: int, index: int, *path: bytes) -> tuple[int, str]:
        text = ctypes.create_string_buffer(_WHY_BYTES)
        function = getattr(self._library, f"tfdist_collectives_{name}")
        number = function(*path, nonce % 2**64, nonce >> 64, members, index, text, _WHY_BYTES)
        return number, text.value.decode(errors="replace")

    def has_come(self, segment: int, index: int) -> bool:
        """Return whether a member has signalled in the shared memory that it is attached."""
        return bool(self._library.tfdist_collectives_has_come(segment, index))

    def listen(self, host: str) -> tuple[int, int, str]:
        """Listen for members on other hosts, at an address of this host."""
        port, why = ctypes.c_uint16(), ctypes.create_string_buffer(_WHY_BYTES)
        number = self._library.tfdist_collectives_listen(host.encode(), ctypes.byref(port), why, _WHY_BYTES)
        return number, port.value, why.value.decode(errors="replace")

    def start(self, segment: int, listener: int, members: "Members") -> int:
        """Start the engine of this process, once all members of its host have come, and return its number."""
        size = len(members.hosts)
        return int(
            self._library.tfdist_collectives_start(
                *(segment, members.rank, size),
                *((ctypes.c_int32 * size)(*members.hosts), (ctypes.c_uint32 * size)(*members.indexes)),
                *(listener, (ctypes.c_char_p * size)(*(host.encode() for host, _ in members.addresses))),
                (ctypes.c_uint16 * size)(*(port for _, port in members.addresses)),
                *(members.key, len(members.key), members.silent_seconds, members.timeout_seconds),
            )
        )

    def choose(self, engine: int, algorithm: str | None) -> str:
        """Fix the algorithm of all reductions between hosts; all members do so before they reduce anything."""
        why = ctypes.create_string_buffer(_WHY_BYTES)
        self._library.tfdist_collectives_choose(
            engine, -1 if algorithm is None else ALGORITHMS.index(algorithm), why, _WHY_BYTES
        )
        return why.value.decode(errors="replace")

    def leave(self, segment: int, listener: int) -> None:
        """Release a segment and a socket without an engine."""
        self._library.tfdist_collectives_leave(segment, listener)

    def replicas(self, count: int) -> list[int]:
        """Return numbers that ops and `abort` accept in place of an engine's, one for each replica of this process."""
        numbers = (ctypes.c_int64 * count)()
        self._library.tfdist_collectives_replicas(count, numbers)
        return list(numbers)

    def waits_for(self, engine: int) -> str:
        """Return the members that an engine has been waiting for longest, and the operation; "" if there are none."""
        text = ctypes.create_string_buffer(_WHY_BYTES)
        self._library.tfdist_collectives_waits_for(engine, text, _WHY_BYTES)
        return text.value.decode(errors="replace")

    def abort(self, engine: int, reason: str) -> None:
        """End the operations of all members with an error; nothing travels afterwards."""
        self._library.tfdist_collectives_abort(engine, reason.encode())

    def stop(self, engine: int) -> None:
        """End this process's part; further calls do nothing."""
        self._library.tfdist_collectives_stop(engine)


@cache
def engines() -> Engines:
    """Return the library, compiled by the first process that asks."""
    return load(library.COLLECTIVES, Engines)
