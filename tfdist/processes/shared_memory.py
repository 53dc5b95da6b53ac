"""Memory that looks like a directory, /dev/shm: whether a job has as much of it as it needs.

Containers get 64 MiB unless they ask for more, which is too little for two things: NCCL, which moves gradients between
the GPUs of a host there, and states of training that are held in memory for workers that are started again.

Source: NVIDIA, "NCCL documentation, Troubleshooting: Shared memory", which asks for 1 GiB.

Example:
    >>> complaint(64 << 20, gpus=1, holds_states=False)
    >>> complaint(64 << 20, gpus=2, holds_states=False)[:24]
    '/dev/shm has 64 MiB, and'
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tfdist.cluster.job_files import MEMORY

CONTAINER_BYTES = 64 << 20  # what container runtimes give when nobody asks for more
NCCL_BYTES = 1 << 30
CURE = "docker run --shm-size=1g"
_GPU = re.compile(r"nvidia\d+")


def observe(folder: Path = MEMORY) -> int | None:
    """Return the size in bytes; None when there is none."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def count_gpus(devices: Iterable[str]) -> int:
    """Return the number of GPUs among the names of devices; a container has the devices that it was given.

    Example:
        >>> count_gpus(["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"])
        2
    """
    return sum(_GPU.fullmatch(name) is not None for name in devices)


def observe_gpus(folder: Path = Path("/dev")) -> int:
    """Return how many GPUs of NVIDIA this machine, or this container, has."""
    return count_gpus(path.name for path in folder.glob("nvidia*"))


def complaint(total_bytes: int | None, *, gpus: int, holds_states: bool) -> str | None:
    """Return what is wrong with the size and what cures it; None when the job has what it needs."""
    size = total_bytes or 0
    why = []
    if gpus > 1 and size < NCCL_BYTES:
        why.append(f"NCCL moves gradients between {gpus} GPUs there and fails when it is full")
    if holds_states and size <= CONTAINER_BYTES:
        why.append("states of training are held there for restarts; what does not fit goes on from the disk")
    if not why:
        return None
    seen = "there is no /dev/shm" if total_bytes is None else f"/dev/shm has {size / (1 << 20):.0f} MiB"
    return f"{seen}, and {'; '.join(why)}. In a container: {CURE}"
