"""The op that takes timestamps of a step on a GPU. If it is missing, the log says why."""

import ctypes
import logging
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.native import library
from tfdist.native.library import load, module_of
from tfdist.native.stamp_ops import StampOps, stamp_ops

DRIVER = "libcuda.so.1"
_alone = threading.Lock()
_log = logging.getLogger(__name__)


class DeviceStampOps:
    """The loaded library, which writes into the rows of `stamps`; `device_stamp_ops` returns that of this process."""

    def __init__(self, path: Path, stamps: StampOps, driver: str = DRIVER) -> None:
        self.stamps = stamps
        self.op: Any = module_of(path, ["tfdist_device_stamp"]).tfdist_device_stamp
        join = ctypes.CDLL(str(path)).tfdist_device_stamps_join
        join.restype, join.argtypes = ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
        if not join(driver.encode(), *stamps.writers()):
            raise MissingDependencyError(
                f"{driver}, the driver of NVIDIA's GPUs, cannot be loaded, or lacks what times events. Install a "
                "driver of release 525 or later.",
                name=driver,
            )


def device_stamp_ops() -> DeviceStampOps | None:
    """Return the library. Return None if `stamp_ops` does, or, after one warning, if the library is unavailable."""
    stamps = stamp_ops()
    if stamps is None:
        return None
    with _alone:
        return _loaded(stamps)


@cache
def _loaded(stamps: StampOps) -> DeviceStampOps | None:
    def made(path: Path) -> DeviceStampOps:
        return DeviceStampOps(path, stamps)

    try:
        return load(library.DEVICE_STAMPS, made)
    except (TfdistError, OSError, AttributeError) as error:
        _log.warning("The parts of steps on GPUs are not recorded, because an op of tfdist's is missing: %s", error)
        return None
