"""The guard in tests/conftest.py: each kind of leak fails its test, is named, and does not reach the next test."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOONER = """
from tests import conftest

conftest.GRACE_SECONDS = 0.5
"""

LEAKING = """
import os, signal, socket, subprocess, sys, threading
from pathlib import Path

import psutil

KEPT = []
STOP = threading.Event()

def test_variable():
    os.environ["LEAKED"] = "1"

def test_variable_is_gone():
    assert "LEAKED" not in os.environ

def test_file():
    Path("left.txt").write_text("x")

def test_directory_is_empty():
    assert os.listdir() == []

def test_changed_directory(tmp_path):
    os.chdir(tmp_path)

def test_handler():
    signal.signal(signal.SIGTERM, lambda *_: None)

def test_child():
    KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))

def test_child_is_gone():
    assert not psutil.pid_exists(KEPT[0].pid)

def test_orphan():
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(601)'])"
    subprocess.run([sys.executable, "-c", code], start_new_session=True, check=True)

def test_thread():
    thread = threading.Thread(target=STOP.wait, args=(60,), name="forgotten", daemon=True)
    thread.start()

def test_thread_can_end():
    STOP.set()

def test_port():
    listener = socket.create_server(("127.0.0.1", 0))
    KEPT.append(listener)

def test_port_is_closed_by_hand():
    KEPT[-1].close()

def test_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("FINE", "1")
    (tmp_path / "fine").write_text("x")
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()
    with socket.create_server(("127.0.0.1", 0)):
        pass
"""

LEAKS = {
    "test_variable": "environment variable: LEAKED is '1', was None",
    "test_file": "file in the working directory: left.txt",
    "test_changed_directory": "working directory: changed to *",
    "test_handler": "signal handler: SIGTERM is *",
    "test_child": "process: * time.sleep(600)",
    "test_orphan": "process: * time.sleep(601)",
    "test_thread": "thread: forgotten (daemon)",
    "test_port": "listening port: 127.0.0.1:*",
}


def test_each_leak_is_named_and_put_back(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(SOONER)
    pytester.makepyfile(test_leaking=LEAKING)
    result = pytester.runpytest_subprocess("-p", "tests.conftest", "-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=14, errors=len(LEAKS))
    for name, message in LEAKS.items():
        result.stdout.fnmatch_lines([f"*ERROR at teardown of {name} *", "this test left behind*", f"  {message}"])
