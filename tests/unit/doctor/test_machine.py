"""Memory, processors, shared memory, open files, control groups, compiler and clock."""

from pathlib import Path

import pytest

from tfdist.doctor import cgroup, machine_check, software_check
from tfdist.doctor.cgroup import Limits
from tfdist.doctor.finding import Level
from tfdist.doctor.machine_check import GIB, MIB, Clock, Memory, Processors
from tfdist.doctor.software_check import Toolchain


@pytest.mark.parametrize(
    ("memory", "level", "word"),
    [
        (Memory(total_bytes=64 * GIB, available_bytes=32 * GIB), Level.OK, "room for 32 small workers"),
        (Memory(total_bytes=64 * GIB, available_bytes=GIB * 3 // 2), Level.WARNING, "room for 1 small worker"),
        (Memory(total_bytes=64 * GIB, available_bytes=GIB // 2), Level.PROBLEM, "room for 0"),
        (
            Memory(total_bytes=64 * GIB, available_bytes=32 * GIB, limit_bytes=4 * GIB, limit_used_bytes=GIB),
            Level.OK,
            "limited to 4.0 GiB",
        ),
        (
            Memory(total_bytes=64 * GIB, available_bytes=32 * GIB, limit_bytes=4 * GIB, limit_used_bytes=GIB),
            Level.OK,
            "3.0 GiB free of 64.0",
        ),
        (
            Memory(total_bytes=64 * GIB, available_bytes=32 * GIB, limit_bytes=GIB, limit_used_bytes=2 * GIB),
            Level.PROBLEM,
            "0.0 GiB free",
        ),
    ],
)
def test_memory(memory: Memory, level: Level, word: str) -> None:
    (finding,) = machine_check.judge_memory(memory)
    assert finding.level is level
    assert word in finding.seen


@pytest.mark.parametrize(
    ("processors", "level"),
    [
        (Processors(cores=8, usable=8), Level.OK),
        (Processors(cores=8, usable=4, quota=4.0), Level.OK),
        (Processors(cores=8, usable=8, quota=2.5), Level.WARNING),
        (Processors(cores=1, usable=1, quota=0.5), Level.WARNING),
    ],
)
def test_processors(processors: Processors, level: Level) -> None:
    (finding,) = machine_check.judge_processors(processors)
    assert finding.level is level
    if level is Level.WARNING:
        assert f"TF_NUM_INTRAOP_THREADS={max(1, int(processors.quota or 0))} " in finding.cure


@pytest.mark.parametrize(
    ("size", "level"), [(None, Level.WARNING), (64 * MIB, Level.WARNING), (65 * MIB, Level.OK), (8 * GIB, Level.OK)]
)
def test_shared_memory(size: int | None, level: Level) -> None:
    (finding,) = machine_check.judge_shared_memory(size)
    assert finding.level is level
    assert ("--shm-size" in finding.cure) == (level is Level.WARNING)


@pytest.mark.parametrize(
    ("soft", "hard", "level", "cure"),
    [
        (-1, -1, Level.OK, ""),
        (65536, 65536, Level.OK, ""),
        (1024, 524288, Level.NOTE, "ulimit -n 65536"),
        (512, 4096, Level.WARNING, "ulimit -n 4096"),
        (128, 128, Level.PROBLEM, "echo '* - nofile 65536'"),
        (128, -1, Level.PROBLEM, "ulimit -n 65536"),
    ],
)
def test_open_files(soft: int, hard: int, level: Level, cure: str) -> None:
    (finding,) = machine_check.judge_open_files(soft, hard)
    assert finding.level is level
    assert finding.cure.startswith(cure) if cure else not finding.cure


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_cgroup_version_2_takes_the_tightest_group(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod/worker"
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/worker",
            f"{group}/memory.max": "max",
            f"{group}/cpu.max": "150000 100000",
            "sys/fs/cgroup/pod/memory.max": str(4 * GIB),
            "sys/fs/cgroup/pod/memory.current": str(3 * GIB),
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {GIB}",
            "sys/fs/cgroup/pod/cpu.max": "max 100000",
        },
    )
    assert cgroup.observe(tmp_path) == Limits(memory_bytes=4 * GIB, memory_used_bytes=2 * GIB, cpus=1.5)


def test_cgroup_version_1_inside_a_container(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/docker/x\n4:memory:/docker/x\n2:cpu,cpuacct:/docker/x",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert cgroup.observe(tmp_path) == Limits(memory_bytes=2 * GIB, memory_used_bytes=GIB, cpus=0.5)


def test_cgroup_without_limits(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert cgroup.observe(tmp_path) == Limits()
    assert cgroup.observe(tmp_path / "nothing") == Limits()


def test_this_machine_is_observed() -> None:
    limits = cgroup.observe()
    memory = machine_check.observe_memory(limits)
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert machine_check.observe_processors(limits).usable >= 1


def test_toolchain() -> None:
    good = software_check.judge_toolchain(Toolchain(compiler="g++ 12.2.0", make="GNU Make 4.3"))
    assert [(f.check, f.level) for f in good] == [(name, Level.OK) for name in ("compiler", "make")]
    bare = software_check.judge_toolchain(Toolchain())
    assert [f.level for f in bare] == [Level.NOTE] * 2
    assert all("tfdist build horovod" in f.why and f.cure for f in bare)


def test_the_compiler_of_cxx_comes_first(tmp_path: Path) -> None:
    compiler = tmp_path / "mycxx"
    compiler.write_text('#!/bin/sh\necho "mycxx 1.0"\necho second line\n')
    compiler.chmod(0o755)
    assert software_check.observe_toolchain({"CXX": str(compiler)}).compiler == "mycxx 1.0"
    assert software_check.observe_toolchain({"CXX": str(tmp_path / "none")}).compiler == ""


@pytest.mark.parametrize(
    ("now", "synchronised", "level"),
    [
        (2e9, True, Level.OK),
        (2e9, None, Level.OK),
        (2e9, False, Level.NOTE),
        (1.5e9, True, Level.PROBLEM),
        (1.9e9 - 60, True, Level.OK),
    ],
)
def test_clock(now: float, synchronised: bool | None, level: Level) -> None:
    (finding,) = machine_check.judge_clock(Clock(now=now, installed=1.9e9, synchronised=synchronised))
    assert finding.level is level


def test_this_clock_is_observed() -> None:
    assert machine_check.observe_clock().now > 1.7e9
