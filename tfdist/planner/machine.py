"""The description of the machine of a measurement."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path


@contextlib.contextmanager
def observed() -> Iterator[dict[str, str]]:
    """Yield the result of `describe`; the end of the ``with`` block adds the "load average at the end"."""
    about = describe()
    yield about
    about["load average at the end"] = describe()["load average"]


def describe() -> dict[str, str]:
    """Return the processor, cores, versions, time and load average."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": named[0] if named else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow"),
        "horovod": _version("horovod"),
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "load average": f"{os.getloadavg()[0]:.1f}",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
