"""The orderly end of a process that a dead Horovod peer would end by SIGABRT.

Horovod 0.28.1: when a connection breaks, the background thread ends its process sets (`BackgroundThreadLoop` in
horovod/common/operations.cc). Their connections are broken too, and nothing catches the `gloo::IoException` that they
throw. C++ then calls `std::terminate`, which ends the process before a waiting reduction can report anything. Horovod
has no option against that, but `std::set_terminate` is a public setting of C++.
"""

import ctypes
from collections.abc import Callable

_OF_GLOO = b"N4gloo"  # how the names of its types begin in the ABI of C++
_Handler = ctypes.CFUNCTYPE(None)
_kept: list[object] = []  # what C++ calls has to live as long as the process


def in_place_of_abort(act: Callable[[], None]) -> None:
    """Call a function, which must end the process, on an uncaught gloo error.

    Other C++ exceptions, and C++ libraries other than GCC's, behave as before.
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
