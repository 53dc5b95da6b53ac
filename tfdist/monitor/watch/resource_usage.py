"""The GPU usage of processes, from NVIDIA's NVML.

NVML reports the part of the time in which a kernel was resident on a device, not how much of the device it used, and
the metric is named accordingly. `Monitor(flops=True)` reports the FLOP/s of a model. This was tested with a stand-in
for NVML, not with a GPU.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

#: bits of NVML's reasons for slower clocks: a cap of power by software, a brake by hardware
_BY_POWER = 0x04 | 0x80
#: heat, by software and by hardware
_BY_HEAT = 0x20 | 0x40
#: NVML's number for all links of a device together
_ALL_LINKS = 0xFFFFFFFF


class Gpus:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._links: dict[int, tuple[float, Mapping[str, float]]] = {}

    @classmethod
    def found(cls) -> "Gpus | None":
        """Return the GPUs of this machine; None if there is no driver, or `nvidia-ml-py` is not installed."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml)
        except pynvml.NVMLError:
            return None

    def used_by(self, pid: int) -> dict[str, float]:
        """Return a process's usage of its devices, without figures that a device or a container's driver lacks."""
        own = {
            place: used
            for place, device in enumerate(self._devices)
            if (used := self._memory_of(pid, device)) is not None
        }
        if not own:
            return {}
        devices = [self._devices[place] for place in own]
        figures: dict[str, float | None] = {
            "gpus": len(own),
            "gpu_memory_bytes": sum(own.values()),
            "gpu_kernel_resident_ratio": _mean(self._each(self._resident, devices)),
            "gpu_power_watts": _sum(self._each(lambda one: self._nvml.nvmlDeviceGetPowerUsage(one) / 1e3, devices)),
            "gpu_slowed_by_power": max(self._each(lambda one: self._slowed(one, _BY_POWER), devices), default=None),
            "gpu_slowed_by_heat": max(self._each(lambda one: self._slowed(one, _BY_HEAT), devices), default=None),
        }
        for name, counter in (("sent", "TX"), ("received", "RX")):
            figures[f"gpu_pcie_{name}_bytes_per_second"] = _sum(self._each(self._pcie(counter), devices))
        rates = [self._by_links(place) for place in own]
        for name in ("sent", "received"):
            figures[f"gpu_nvlink_{name}_bytes_per_second"] = _sum(one[name] for one in rates if one)
        return {name: float(value) for name, value in figures.items() if value is not None}

    def _memory_of(self, pid: int, device: Any) -> int | None:
        try:
            there = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        except self._nvml.NVMLError:
            return None
        return next((one.usedGpuMemory or 0 for one in there if one.pid == pid), None)

    def _each(self, read: Callable[[Any], float], devices: Sequence[Any]) -> list[float]:
        found = []
        for device in devices:
            try:
                found.append(read(device))
            except self._nvml.NVMLError:
                continue
        return found

    def _resident(self, device: Any) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100

    def _slowed(self, device: Any, reasons: int) -> float:
        return float(bool(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & reasons))

    def _pcie(self, counter: str) -> Callable[[Any], float]:
        """Return a reader of NVML's PCIe figure for the last 20 ms, which is in KB per second."""
        which = getattr(self._nvml, f"NVML_PCIE_UTIL_{counter}_BYTES")
        return lambda device: 1e3 * float(self._nvml.nvmlDeviceGetPcieThroughput(device, which))

    def _by_links(self, place: int) -> dict[str, float]:
        """Return the bytes per second over NVLink since the last look; empty if unknown."""
        fields = {
            "sent": self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "received": self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        try:
            read = self._nvml.nvmlDeviceGetFieldValues(
                self._devices[place], [(field, _ALL_LINKS) for field in fields.values()]
            )
        except self._nvml.NVMLError:
            return {}
        if any(one.nvmlReturn for one in read):
            return {}
        now = {name: 1024.0 * one.value.ullVal for name, one in zip(fields, read, strict=True)}
        when, before = self._links.get(place, (0.0, None))
        self._links[place] = time.monotonic(), now
        if before is None:
            return {}
        seconds = max(time.monotonic() - when, 1e-9)
        return {name: max(0.0, value - before[name]) / seconds for name, value in now.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resident bytes and busy processors of a process, None if unknown, and other metrics without ``tfdist_``."""

    memory: int | None = None
    cpu: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)


class Process:
    """A process whose usage is read repeatedly; the first rates are those since its start."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        # ages and rates are measured on the clock that cannot be set
        self._when = time.monotonic() - max(0.0, time.time() - self._process.create_time())
        self._before: dict[str, float] = {}

    def look(self) -> Usage:
        """Return the current usage of the process; no figures when it is gone."""
        try:
            with self._process.oneshot():
                memory = int(self._process.memory_info().rss)
                threads = float(self._process.num_threads())
                done = self._done()
        except psutil.Error:
            return Usage()
        now = time.monotonic()
        seconds = max(now - self._when, 1e-9)
        rates = {name: max(0.0, value - self._before.get(name, 0.0)) / seconds for name, value in done.items()}
        self._when, self._before = now, done
        return Usage(memory=memory, cpu=rates.pop("cpu"), others={"threads": threads, **rates})

    def _done(self) -> dict[str, float]:
        times = self._process.cpu_times()
        done: dict[str, float] = {"cpu": times.user + times.system}
        with contextlib.suppress(NotImplementedError):  # gVisor does not count them
            done["preemptions_per_second"] = self._process.num_ctx_switches().involuntary
        with contextlib.suppress(psutil.AccessDenied):  # another user's
            disk = self._process.io_counters()
            done |= {"read_bytes_per_second": disk.read_bytes, "written_bytes_per_second": disk.write_bytes}
        return done
