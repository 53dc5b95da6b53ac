"""A process that a quota makes slower: the group that limits it, and that nothing of it remains."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.servers.processor_quota import PERIOD_MICROSECONDS, Quota, has_quotas, slowed
from benchmarks.servers.throttle import Throttle


@pytest.mark.skipif(not has_quotas(), reason="needs root and version 1 of cgroups")
def test_a_process_has_its_part_of_a_processor_until_the_block_is_left() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        quota = slowed(process.pid, 4.0)
        assert isinstance(quota, Quota)
        try:
            with quota:
                group = quota._group
                assert str(process.pid) in (group / "cgroup.procs").read_text().split()
                assert int((group / "cpu.cfs_quota_us").read_text()) * 4 == PERIOD_MICROSECONDS
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert not group.exists()
        finally:
            process.kill()


def test_without_quotas_a_process_is_stopped_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_quotas(tmp_path)
    monkeypatch.setattr("benchmarks.servers.processor_quota.has_quotas", lambda: False)
    assert isinstance(slowed(1, 4.0), Throttle)
