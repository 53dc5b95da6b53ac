"""The measurements behind predictions: link, matrices, memory, disk, messages and steps.

    tfdist run -n 4 --hosts hosts.txt -m tfdist.tune.calibrating

measures between the workers of a job, for the record on the machine of the first worker.
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import TfdistError
from tfdist.planner import machine
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.plan_record import Calibration
from tfdist.tune.profiling import PAIR_SECONDS, Told, of_two_processes

_LINK_BYTES = 16 << 20
_LINK_SECONDS = 2.0
_BUCKETS = 4
_SIDE = 1024
_BLOCK = 64 << 20
_FLOAT_BYTES = 4
_ENOUGH_SECONDS = 0.5
_STEPS = 60
_OF_DIFFERENCES = 0.954  # the median size of a difference of two normal numbers, in standard deviations


def calibration(told: Told, *, timeout_seconds: float = PAIR_SECONDS) -> Calibration:
    """Measure this machine: its matrices, memory and disk, and the link between two of its processes."""
    told("measuring matrices, memory and disk")
    alone = _of_machine(is_local=True)
    told("measuring link, messages and steps of two processes")
    costs = of_two_processes(
        "tfdist.tune.calibrating:costs_of_worker",
        {},
        what="the costs of two processes were",
        timeout_seconds=timeout_seconds,
    )
    return _with_costs(alone, costs, is_local=True)


def _of_machine(*, is_local: bool) -> dict[str, Any]:
    return {
        "flops": matrix_rate(),
        "memory_bytes_per_second": _copy_rate(),
        "disk_bytes_per_second": _disk_rate(),
        "machine": {**machine.describe(), "link": "two processes of this host" if is_local else "workers of a job"},
    }


def _with_costs(given: dict[str, Any], costs: dict[str, float], *, is_local: bool) -> Calibration:
    link = Link(latency_seconds=costs["latency_seconds"], bytes_per_second=costs["bytes_per_second"], is_local=is_local)
    kept = {name: value for name, value in costs.items() if name not in ("latency_seconds", "bytes_per_second")}
    return Calibration(link=link, **{**given, **kept})


def matrix_rate() -> float:
    """Measure the operations per second on float32 matrices, on all processors."""
    one = np.ones((_SIDE, _SIDE), np.float32)
    result = np.empty_like(one)
    return 2 * _SIDE**3 / _least(lambda: np.matmul(one, one, out=result))


def _copy_rate() -> float:
    source = np.ones(_BLOCK // 8)
    target = np.empty_like(source)
    return _BLOCK / _least(lambda: np.copyto(target, source))


def _disk_rate() -> float:
    """Measure the bytes per second that are written and synchronized in the cache folder."""
    block, place = b"\1" * _BLOCK, plan_record.path_of(os.environ).parent
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place) as file:
        began = time.perf_counter()
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _BLOCK / (time.perf_counter() - began)


def _least(call: Callable[[], object]) -> float:
    """Return the shortest time of a call, among all calls that fit into half a second."""
    call()
    found, until = list[float](), time.perf_counter() + _ENOUGH_SECONDS
    while not found or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def costs_of_worker() -> dict[str, float]:
    """Return the costs that `costs_of` measures between the workers of this job."""
    from tfdist import strategies

    strategy: Any = strategies.from_environment()
    return costs_of(strategy.workers.collective)


def costs_of(collective: Any) -> dict[str, float]:
    """Measure the link between members, the cost of PowerSGD, an almost empty step, and the noise of steps."""
    import tensorflow as tf

    from tfdist.collectives.link_measuring import measured_link
    from tfdist.compression import PowerSGD
    from tfdist.gradients.reduction.codec_plan import agreed_costs

    is_far = len(set(collective.hosts)) == collective.size
    link = measured_link(collective, _LINK_BYTES, seconds=_LINK_SECONDS, buckets=_BUCKETS if is_far else 1)
    (codec,) = agreed_costs(collective, [PowerSGD(rank=2)])

    @tf.function(autograph=False)
    def product(matrix: tf.Tensor) -> tf.Tensor:
        return matrix @ matrix

    def step(side: int) -> list[float]:
        matrix, taken = tf.ones([side, side]), list[float]()
        product(matrix).numpy()
        for _ in range(_STEPS):
            began = time.perf_counter()
            product(matrix).numpy()
            taken.append(time.perf_counter() - began)
        return taken

    nothing, steps = step(1), step(_SIDE // 2)
    return {
        "latency_seconds": link.latency_seconds,
        "bytes_per_second": link.bytes_per_second,
        "step_seconds": statistics.median(nothing),
        "codec_seconds": codec.seconds,
        "codec_seconds_per_byte": codec.seconds_per_element / _FLOAT_BYTES,
        "noise": noise_of(steps),
    }


def noise_of(steps: Sequence[float]) -> float:
    """Return the standard deviation of steps, relative to their median, from the differences between neighbours.

    The speed of a machine drifts, for all of its processes. Only what changes from step to step makes workers wait.

    Example:
        >>> noise_of([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
        0.0
    """
    changes = [abs(later - sooner) for sooner, later in itertools.pairwise(steps)]
    return statistics.median(changes) / _OF_DIFFERENCES / statistics.median(steps)


def keep(found: Calibration) -> Path:
    """Write a calibration into the record of this machine."""
    path = plan_record.path_of(os.environ)
    plan_record.change(path, lambda record: record.calibrated(found))
    return path


def main() -> None:
    """Measure between the workers of this job, and store the result on the machine of the first worker."""
    from tfdist import cluster

    own = cluster.from_environment()
    if own.num_workers < 2:
        raise TfdistError("this job has one worker and no link. Start it with tfdist run -n 2, or more.")
    costs = costs_of_worker()
    if own.worker_index == 0:
        path = keep(_with_costs(_of_machine(is_local=False), costs, is_local=False))
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
