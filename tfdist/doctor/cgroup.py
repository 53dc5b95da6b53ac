"""The limits of this process's control group on memory and CPU time, for versions 1 and 2.

A container sees the memory and the cores of its host; the group limits how much of them it may use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED_BYTES = 1 << 60  # version 1 writes a huge number where there is no limit


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The tightest limits of the group and of the groups around it, in bytes and cores; None: no limit."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    cpus: float | None = None


def observe(root: Path = Path("/")) -> Limits:
    memory: list[tuple[int, int]] = []
    cpus: list[float] = []
    for controllers, group in _groups(root):
        mount = root / "sys/fs/cgroup" / controllers
        for inner in (group, *group.parents):  # inside a container the mount may begin at the group itself
            folder = mount / inner
            memory += _memory(folder)
            cpus += _cpus(folder)
    limit, used = min(memory, default=(None, None))
    return Limits(memory_bytes=limit, memory_used_bytes=used, cpus=min(cpus, default=None))


def _groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or {"memory", "cpu"} & set(controllers.split(",")):
            yield controllers, PurePosixPath(path.lstrip("/"))


def _memory(folder: Path) -> Iterator[tuple[int, int]]:
    for limit, used, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        bytes_allowed = _read(folder / limit)
        if bytes_allowed.isdigit() and int(bytes_allowed) < _UNLIMITED_BYTES:
            statistics = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines())
            yield int(bytes_allowed), max(0, int(_read(folder / used) or 0) - int(statistics.get(inactive, 0)))


def _cpus(folder: Path) -> Iterator[float]:
    words = _read(folder / "cpu.max").split()
    words = words or [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        yield int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
