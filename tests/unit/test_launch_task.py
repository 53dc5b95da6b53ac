"""A task of a parameter-server cluster ends at the signals of who has started it, and at nobody else's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.jobs.plan.job_plan import WORKER_FILE

DEADLINE_SECONDS = 200
# has a thread from the moment that it is loaded, as NumPy's BLAS has
TENSORFLOW = """
import sys, threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
print("loading", flush=True)
sys.stdin.readline()
class distribute:
    class Server:
        def __init__(self, cluster, *, job_name, task_index, protocol):
            print("serving", flush=True)
"""
# one closely behind the other
SIGNALS = "for _ in 1 2 3 4 5 6 7 8 9 10; do for number in TERM HUP INT; do kill -$number $0; done; done"


@pytest.fixture
def task(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    configuration = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    with subprocess.Popen(
        [sys.executable, str(WORKER_FILE), "--parent", str(os.getpid()), "--task"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TF_CONFIG": json.dumps(configuration)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def said(task: "subprocess.Popen[str]") -> str:
    assert task.stdout is not None
    return task.stdout.readline().strip()


def waiting(task: "subprocess.Popen[str]") -> int:
    """Return the signals that nobody has taken yet, as the kernel has them."""
    lines = Path(f"/proc/{task.pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))


def test_signals_of_others(task: "subprocess.Popen[str]") -> None:
    assert task.stdin is not None
    for word in ("loading", "serving"):
        assert said(task) == word
        subprocess.run(["sh", "-c", SIGNALS, str(task.pid)], check=True, timeout=DEADLINE_SECONDS)
        if word == "loading":
            task.stdin.write("\n")
            task.stdin.flush()
    while waiting(task):  # of two of one number the second counts only if the first was taken
        time.sleep(0.01)
    task.send_signal(signal.SIGHUP)
    assert task.wait(DEADLINE_SECONDS) == 128 + signal.SIGHUP


def test_its_own_while_it_loads(task: "subprocess.Popen[str]") -> None:
    assert said(task) == "loading"
    task.send_signal(signal.SIGTERM)
    assert task.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
