"""The GPU use of processes, as reported by a library that answers like NVML."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from rich.console import Console

from tests.refusals import absent
from tfdist import resources
from tfdist.monitor.watch import terminal
from tfdist.monitor.watch.resource_usage import Gpus
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView

SOURCE = Path(__file__).parents[1] / "native" / "nvml.c"
ASK = """
import json
from tfdist.monitor.watch import terminal
from tfdist.monitor.watch.resource_usage import Gpus
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView
gpus = Gpus.found()
print(json.dumps([gpus.used_by(pid) for pid in (100, 100, 200, 300)]))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Return the results of two looks at process 100, and of one each at 200 and 300."""
    folder = tmp_path_factory.mktemp("nvml")
    built = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(built, check=True, timeout=120)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, check=True, timeout=120, stdout=subprocess.PIPE
    )
    return list(json.loads(asked.stdout))


def test_a_process_on_two_devices(told: list[dict[str, float]]) -> None:
    first, then, _, _ = told
    documented = resources.pages()["monitoring-exporters"].read_text(encoding="utf-8")
    assert all(f"`tfdist_{name}`" in documented for name in then)
    assert then == {
        **first,
        # only the first device has links; how much a second is depends on when both looks were
        "gpu_nvlink_sent_bytes_per_second": then["gpu_nvlink_sent_bytes_per_second"],
        "gpu_nvlink_received_bytes_per_second": pytest.approx(3 * then["gpu_nvlink_sent_bytes_per_second"]),
    }
    assert then["gpu_nvlink_sent_bytes_per_second"] > 0
    assert first == {
        "gpus": 2,
        "gpu_memory_bytes": 4000,
        "gpu_kernel_resident_ratio": pytest.approx(0.6),
        "gpu_power_watts": 250,
        "gpu_slowed_by_power": 1,
        "gpu_slowed_by_heat": 1,
        "gpu_pcie_sent_bytes_per_second": 20_000,
        "gpu_pcie_received_bytes_per_second": 40_000,
    }


def test_pages_say_it(told: list[dict[str, float]]) -> None:
    workers = tuple(WorkerView(worker=at, parts={}, resources=one) for at, one in enumerate(told[1:]))
    shown = Snapshot(job="a1", start=0, time=0.0, is_running=True, workers=workers)
    console = Console(width=120, file=io.StringIO())
    console.print(terminal.page(shown))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (second,) = [one for one in lines if "worker 1: 1 GPU" in one]
    assert not absent(second, "0 MiB", "40%", "slowed by heat")
    assert [bool(one["gpus"]) for one in shown.as_json()["workers"]] == [True, True, False]


def test_what_a_device_does_not_tell_is_left_out(told: list[dict[str, float]]) -> None:
    assert told[2] == {
        "gpus": 1,
        "gpu_memory_bytes": 500,
        "gpu_kernel_resident_ratio": pytest.approx(0.4),
        "gpu_slowed_by_power": 0,
        "gpu_slowed_by_heat": 1,
        "gpu_pcie_sent_bytes_per_second": 10_000,
        "gpu_pcie_received_bytes_per_second": 20_000,
    }


def test_a_process_that_computes_on_none(told: list[dict[str, float]]) -> None:
    assert told[3] == {}


def test_where_there_is_no_driver() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert Gpus.found() is None
    else:
        assert Gpus.found() is not None
