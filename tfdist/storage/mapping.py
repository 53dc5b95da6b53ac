"""A file mapped into memory without a descriptor: as many as the system allows maps, not as many as files may be open.

The standard library's `mmap` keeps a descriptor for each map (until Python 3.13), and a process may have 1,024 of them.
"""

import ctypes
import errno
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """The first ``size`` bytes of an open file, read-only; the descriptor may be closed at once.

    The map ends with the last array that shows it. Bytes behind the end of the file must not be touched.
    """
    if not size:
        return np.empty(0, np.uint8)
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _FAILED):
        number = ctypes.get_errno() or errno.ENOMEM
        raise OSError(number, os.strerror(number))
    content: Any = (ctypes.c_char * size).from_address(address)
    # not at the end of the process: threads may read up to then
    weakref.finalize(content, _libc.munmap, address, size).atexit = False
    found = np.frombuffer(content, np.uint8)
    found.flags.writeable = False
    return found
