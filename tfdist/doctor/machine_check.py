"""The clock, memory, processors, shared memory and open files, and how much of each this process may use."""

import ctypes
import os
import resource
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

import tfdist
from tfdist.doctor import cgroup
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.processes.shared_memory import CONTAINER_BYTES
from tfdist.validation import counted

_TIMEX_BYTES = 512  # more than any kernel's struct timex; all zero asks and changes nothing
_TIME_ERROR = 5
_TOLERATED_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The wall clock, and the time when this package was installed, in seconds since 1970."""

    now: float
    installed: float
    synchronised: bool | None = None  # a time service keeps the clock; None where the kernel cannot be asked


def observe_clock() -> Clock:
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        state = -1
    installed = Path(tfdist.__file__).stat().st_mtime
    return Clock(now=time.time(), installed=installed, synchronised=None if state < 0 else state != _TIME_ERROR)


def judge_clock(clock: Clock) -> list[Finding]:
    seen = datetime.fromtimestamp(clock.now, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if clock.now < clock.installed - _TOLERATED_SECONDS:
        why = "it is behind the time at which tfdist was installed: certificates, make and event times go wrong"
        return [problem("clock", seen, why, "timedatectl set-ntp true")]
    if clock.synchronised is False:
        why = "no time service keeps it; with several hosts the order of their events is not certain"
        return [note("clock", f"{seen}, not synchronized", why, "timedatectl set-ntp true")]
    return [ok("clock", seen)]


GIB = 1 << 30
MIB = 1 << 20
WORKER_BYTES = GIB  # one process with TensorFlow and a small model, measured at 0.7 to 0.8 GiB
_FEW_FILES, _TOO_FEW_FILES = 1024, 256


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The bytes of memory of the machine, and of the control group if that has a limit."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None

    @property
    def free_bytes(self) -> int:
        if self.limit_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, max(0, self.limit_bytes - (self.limit_used_bytes or 0)))


@dataclass(frozen=True, kw_only=True)
class Processors:
    """The cores of the machine, the cores this process may run on, and its quota of CPU time; 1.0 is one core."""

    cores: int
    usable: int
    quota: float | None = None


def observe_memory(limits: cgroup.Limits) -> Memory:
    machine = psutil.virtual_memory()
    return Memory(
        total_bytes=machine.total,
        available_bytes=machine.available,
        limit_bytes=limits.memory_bytes,
        limit_used_bytes=limits.memory_used_bytes,
    )


def judge_memory(memory: Memory) -> list[Finding]:
    """Judge the memory by the number of small workers that fit."""
    seen = f"{memory.free_bytes / GIB:.1f} GiB free of {memory.total_bytes / GIB:.1f} GiB"
    if memory.limit_bytes is not None and memory.limit_bytes < memory.total_bytes:
        seen += f", limited to {memory.limit_bytes / GIB:.1f} GiB by the control group"
    workers = memory.free_bytes // WORKER_BYTES
    seen += f"; room for {counted(workers, 'small worker')}"
    cure = "ps -eo pid,rss,args --sort=-rss | head   # or raise the limit: docker run --memory=8g"
    why = f"a worker takes up to {WORKER_BYTES // GIB} GiB before the model; without memory it is killed (signal 9)"
    if workers < 1:
        return [problem("memory", seen, why, cure)]
    if workers < 2:
        return [warning("memory", seen, why, cure)]
    return [ok("memory", seen)]


def observe_processors(limits: cgroup.Limits) -> Processors:
    return Processors(cores=os.cpu_count() or 1, usable=len(os.sched_getaffinity(0)), quota=limits.cpus)


def judge_processors(processors: Processors) -> list[Finding]:
    seen = f"{processors.usable} of {processors.cores} cores"
    if processors.quota is None or processors.quota >= processors.usable:
        return [ok("processors", seen)]
    threads = max(1, int(processors.quota))
    why = f"TensorFlow starts {processors.usable} threads per pool; beyond the quota all of them are stopped together"
    cure = f"export TF_NUM_INTRAOP_THREADS={threads} TF_NUM_INTEROP_THREADS={threads} OMP_NUM_THREADS={threads}"
    return [warning("processors", f"{seen}, with a quota of {processors.quota:.2g} cores", why, cure)]


def judge_shared_memory(total_bytes: int | None) -> list[Finding]:
    why = "NCCL exchanges gradients between the GPUs of a host there and fails when it is full"
    cure = "docker run --shm-size=1g ...   # Kubernetes: an emptyDir with medium Memory at /dev/shm"
    if total_bytes is None:
        return [warning("shared-memory", "no /dev/shm", why, cure)]
    if total_bytes <= CONTAINER_BYTES:
        return [warning("shared-memory", f"/dev/shm has {total_bytes / MIB:.0f} MiB", why, cure)]
    return [ok("shared-memory", f"/dev/shm has {total_bytes / GIB:.1f} GiB")]


def observe_open_files() -> tuple[int, int]:
    """Return the soft and the hard limit of open files; -1 is no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def judge_open_files(soft: int, hard: int) -> list[Finding]:
    if soft == resource.RLIM_INFINITY:
        return [ok("open-files", "no limit")]
    seen = f"{soft} per process"
    why = "each data file that is read in parallel and each connection to a worker takes one"
    reachable = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    raising = "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/nofile.conf   # then log in again"
    cure = f"ulimit -n {reachable}" if reachable > soft else raising
    if soft < _TOO_FEW_FILES:
        return [problem("open-files", seen, why, cure)]
    if soft < _FEW_FILES:
        return [warning("open-files", seen, why, cure)]
    if soft == _FEW_FILES:
        return [note("open-files", seen, why, cure)]
    return [ok("open-files", seen)]
