"""`tfdist run` says once that /dev/shm is too small for the job, with the flag that a container needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agents import ROOT

# a machine with two GPUs and what containers get, as the agent sees them
AGENT = """
import sys
from tfdist.processes import shared_memory
shared_memory.observe, shared_memory.observe_gpus = lambda: 64 << 20, lambda: int(sys.argv[1])
from tfdist.cli.main import main
main(["run", "-n", "2", "script.py"])
"""


@pytest.mark.quick
@pytest.mark.parametrize("gpus", [0, 2])
def test_the_flag_is_named_once(tmp_path: Path, gpus: int) -> None:
    (tmp_path / "script.py").write_text("print('done')\n")
    command = [sys.executable, "-c", AGENT, str(gpus)]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stderr
    assert done.stderr.count("--shm-size=1g") == (1 if gpus else 0)
