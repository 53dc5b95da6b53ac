"""Checks whether /dev/shm is large enough for a job.

Containers get 64 MiB by default. NCCL needs more to move gradients between GPUs of a host, and so do states that are
held in memory for restarts.

Source: NVIDIA, "NCCL documentation, Troubleshooting: Shared memory", which asks for 1 GiB.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tfdist.cluster.job_files import MEMORY

CONTAINER_BYTES = 64 << 20  # what container runtimes give by default
NCCL_BYTES = 1 << 30
CURE = "docker run --shm-size=1g"
_GPU = re.compile(r"nvidia\d+")


def observe(folder: Path = MEMORY) -> int | None:
    """Return the size in bytes; None if there is no such folder."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def count_gpus(devices: Iterable[str]) -> int:
    """Return the number of GPUs among device names; a container has only its own."""
    return sum(_GPU.fullmatch(name) is not None for name in devices)


def observe_gpus(folder: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA GPUs of this machine or container."""
    return count_gpus(path.name for path in folder.glob("nvidia*"))


def complaint(total_bytes: int | None, *, gpus: int, holds_states: bool) -> str | None:
    """Return the problem with the size and its fix; None if the size is enough."""
    size = total_bytes or 0
    why = []
    if gpus > 1 and size < NCCL_BYTES:
        why.append(f"NCCL moves gradients between {gpus} GPUs there and fails when it is full")
    if holds_states and size <= CONTAINER_BYTES:
        why.append("states of training are held there for restarts; what does not fit is read from the disk")
    if not why:
        return None
    seen = "there is no /dev/shm" if total_bytes is None else f"/dev/shm has {size / (1 << 20):.0f} MiB"
    return f"{seen}, and {'; '.join(why)}. In a container: {CURE}"
