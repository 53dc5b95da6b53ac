"""A member that dies in a job with process sets: what happens in place of SIGABRT in the others.

Horovod 0.28.1: when a connection breaks, its background thread catches the error, leaves its loop, and ends its process
sets (`BackgroundThreadLoop` in horovod/common/operations.cc). Their own connections are broken too, and nobody catches
the `gloo::IoException` that they throw: C++ calls `std::terminate`, and the process ends by SIGABRT before whoever
waits for a reduction has been told anything. No option of Horovod's prevents that, and the operations under way cannot
be ended from outside. But what `std::terminate` calls is a public setting of C++ (`std::set_terminate`).
"""

import ctypes
from collections.abc import Callable

_OF_GLOO = b"N4gloo"  # how the names of its types begin in the ABI of C++
_Handler = ctypes.CFUNCTYPE(None)
_kept: list[object] = []  # what C++ calls has to live as long as the process


def in_place_of_abort(act: Callable[[], None]) -> None:
    """Call a function, which has to end the process, where an error of gloo's connections would end it without a word.

    Any other exception of C++ that nobody catches ends the process as before. Where the library of C++ is not the one
    of GCC, nothing is changed.

    Example:
        >>> in_place_of_abort(lambda: os._exit(1))                    # doctest: +SKIP
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        set_terminate = library["_ZSt13set_terminatePFvvE"]
        type_of_exception = library["__cxa_current_exception_type"]
    except (OSError, AttributeError):
        return
    type_of_exception.restype = set_terminate.restype = ctypes.c_void_p
    set_terminate.argtypes = [ctypes.c_void_p]
    before: list[int | None] = []

    def terminate() -> None:
        if _name_of(type_of_exception()).startswith(_OF_GLOO):
            act()
        if before and before[0]:
            _Handler(before[0])()

    handler = _Handler(terminate)
    _kept.append(handler)
    before.append(set_terminate(ctypes.cast(handler, ctypes.c_void_p)))


def _name_of(type_info: int | None) -> bytes:
    """Return the name of a C++ type: the second word of its `std::type_info` points to it."""
    if not type_info:
        return b""
    return ctypes.c_char_p.from_address(type_info + ctypes.sizeof(ctypes.c_void_p)).value or b""
