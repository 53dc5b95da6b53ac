"""Faults on purpose: which plans are read, what is meant for whom, and what happens in a real process."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.monitor import faults
from tfdist.monitor.faults import Fault, Script

CALL = "from tfdist.monitor import faults\nfor step in range(5): faults.at({point!r}, step)\nprint('went on')"


@pytest.fixture
def planned(monkeypatch):  # type: ignore[no-untyped-def]
    """Let this process be worker 0 of a job with a plan."""

    def plan(text: str) -> None:
        monkeypatch.setattr(faults, "_script", None)
        monkeypatch.setenv("TFDIST_FAULTS", text)

    return plan


def ended(plan: str, *, point: str = "step", **environment: str) -> tuple[int, str]:
    """Run a process that passes the point five times; return its exit code and its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFDIST_")}
    process = subprocess.run(
        [sys.executable, "-c", CALL.format(point=point)],
        env={**kept, "TFDIST_FAULTS": plan, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return process.returncode, process.stdout.strip()


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ('[{"kind": "kill", "step": 3}]', -signal.SIGKILL),
        ('[{"kind": "term"}]', -signal.SIGTERM),
        ('[{"kind": "exit", "step": 0}]', faults.EXIT_CODE),
        ('[{"kind": "exception", "step": 4}]', 1),
    ],
)
def test_a_process_ends_as_the_plan_says(plan: str, code: int) -> None:
    assert ended(plan) == (code, "")


@pytest.mark.parametrize(
    ("plan", "environment"),
    [
        ("", {}),
        ("[]", {}),
        ('[{"kind": "kill", "step": 9}]', {}),
        ('[{"kind": "kill", "at": "validation"}]', {}),
        ('[{"kind": "kill", "worker": 1}]', {"TFDIST_WORKER_INDEX": "0"}),
        ('[{"kind": "kill"}]', {"TFDIST_RESTARTS": "1"}),
        ('[{"kind": "hang", "seconds": 0.001}]', {}),
        ('[{"kind": "slow", "seconds": 0.001, "step": 2}]', {}),
    ],
)
def test_a_process_goes_on_that_nothing_is_meant_for(plan: str, environment: dict[str, str]) -> None:
    assert ended(plan, **environment) == (0, "went on")


def test_a_stopped_process_stands_still() -> None:
    environment = {**os.environ, "TFDIST_FAULTS": '[{"kind": "stop", "step": 2}]'}
    with subprocess.Popen([sys.executable, "-c", CALL.format(point="step")], env=environment) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(timeout=200) == 0


def test_what_is_meant_for_whom() -> None:
    everything = (
        Fault(kind="kill", worker=1, step=3),
        Fault(kind="stop", worker=1, step=4, restart=1),
        Fault(kind="slow", worker=1, step=5, seconds=1.0, restart=None),
    )
    script = Script(everything, worker=1, restart=1)
    assert [f.kind for f in script.due("step", 3)] == []
    assert [f.kind for f in script.due("step", 4)] == ["stop"]
    assert [f.kind for f in script.due("step", 4)] == []  # once
    assert [f.kind for f in script.due("save-begin", 5)] == []
    assert [[f.kind for f in script.due("step", step)] for step in (5, 6)] == [["slow"], ["slow"]]
    assert Script(everything, worker=0, restart=0).waiting == []


def test_of_what_may_come_at_any_step_each_has_a_step_of_its_own() -> None:
    full = Fault(kind="disk-full", at="save-begin")
    script = Script((full, full, Fault(kind="corrupt", at="save-commit")), worker=0, restart=0)
    assert [script.due("save-begin", step) for step in range(3)] == [[full], [full], []]
    assert len(script.waiting) == 1


def test_the_backup_meets_a_fault_and_what_is_held_in_memory_another() -> None:
    disk, memory = (Fault(kind="disk-full", at="save-begin", memory=memory) for memory in (False, True))
    script = Script((disk, memory), worker=0, restart=0)
    assert script.due("save-begin", 1, memory=True) == [memory]
    assert script.due("save-begin", 1, memory=True) == []
    assert script.due("save-begin", 1) == [disk]


def test_a_full_disk_is_an_error_of_the_system(planned) -> None:  # type: ignore[no-untyped-def]
    planned('[{"kind": "disk-full", "at": "save-middle", "step": 1}]')
    faults.at("save-middle", 0)
    with pytest.raises(OSError, match="save-middle") as raised:  # an error of the system, none of tfdist's
        faults.at("save-middle", 1)
    assert raised.value.errno == errno.ENOSPC
    faults.at("save-middle", 1)


def test_one_byte_of_the_largest_file_changes(planned, tmp_path) -> None:  # type: ignore[no-untyped-def]
    planned('[{"kind": "corrupt", "at": "save-commit"}]')
    small, large = tmp_path / "manifest.json", tmp_path / "arrays"
    small.write_bytes(b"{}")
    large.write_bytes(bytes(range(11)))
    faults.at("save-commit", 0, path=tmp_path)
    assert small.read_bytes() == b"{}"
    assert [i for i in range(11) if large.read_bytes()[i] != i] == [5]


def test_there_is_nothing_to_corrupt_yet(planned) -> None:  # type: ignore[no-untyped-def]
    planned('[{"kind": "corrupt", "at": "save-begin"}]')
    with refused(ConfigError, name="at", received="save-begin"):
        faults.at("save-begin", 0)


def test_a_signal_goes_to_the_task_that_is_meant(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    plan = '[{"kind": "term", "task": "ps 0", "step": 3}, {"kind": "kill", "task": "worker 9", "step": 4}]'
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as server:
        try:
            tasks.write_text(json.dumps({"ps 0": server.pid}))
            code, said = ended(plan, TFDIST_TASKS_FILE=str(tasks))
            assert server.wait(timeout=200) == -signal.SIGTERM
        finally:
            server.kill()
    assert (code, said) == (1, ""), "there is no worker 9, which is an error"
    of_the_chief = '[{"kind": "kill", "task": "chief", "step": 3}]'
    assert ended(of_the_chief) == (-signal.SIGKILL, "")
    assert ended('[{"kind": "kill", "task": "ps 0"}]')[0] == 1, "there is no chief"


@pytest.mark.parametrize(
    ("kind", "text", "name", "received"),
    [
        (ConfigError, "{", "TFDIST_FAULTS", "{"),
        (ConfigError, '[{"kind": "kill", "task": "server"}]', "task", "server"),
        (ConfigError, '[{"kind": "hang", "task": "ps 0"}]', "kind", "hang"),
        (ConfigError, '[{"kind": "kill", "task": "ps 0", "worker": 1}]', "worker", "1"),
        (ConfigError, "[" * 100_000, "TFDIST_FAULTS", "[" * 100_000),
        (ConfigTypeError, "{}", "TFDIST_FAULTS", "{}"),
        (ConfigTypeError, "[1]", "TFDIST_FAULTS", "[1]"),
        (ConfigError, "[{}]", "kind", None),
        (ConfigError, '[{"kind": "explode"}]', "kind", "explode"),
        (ConfigError, '[{"kind": "kill", "when": 3}]', "when", "3"),
        (ConfigError, '[{"kind": "kill", "at": "lunch"}]', "at", "lunch"),
        (ConfigError, '[{"kind": "kill", "step": -1}]', "step", "-1"),
        (ConfigTypeError, '[{"kind": "kill", "step": true}]', "step", "True"),
        (ConfigTypeError, '[{"kind": "kill", "worker": "1"}]', "worker", "'1'"),
        (ConfigError, '[{"kind": "slow"}]', "seconds", None),
        (ConfigError, '[{"kind": "slow", "seconds": 0}]', "seconds", "0"),
        (ConfigError, '[{"kind": "kill", "seconds": 1}]', "seconds", "1"),
        (ConfigError, '[{"kind": "corrupt", "at": "step"}]', "at", "step"),
        (ConfigError, '[{"kind": "kill", "memory": true}]', "memory", "True"),
        (ConfigTypeError, '[{"kind": "kill", "at": "save-begin", "memory": 1}]', "memory", "1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(kind: type[ConfigError], text: str, name: str, received: str | None) -> None:
    with refused(kind, name=name) as caught:
        faults.parse(text)
    assert caught.value.received == received


def test_a_fault_is_read_as_it_is_written() -> None:
    fault = Fault(kind="hang", worker=2, at="epoch-end", step=5, restart=None, seconds=1.5)
    assert faults._fault(fault.as_json()) == fault
    assert faults._fault(Fault(kind="kill").as_json()) == Fault(kind="kill")
    assert faults._fault(Fault(kind="kill", task="ps 0").as_json()) == Fault(kind="kill", task="ps 0")
    memory = Fault(kind="kill", at="save-middle", memory=True)
    assert faults._fault(memory.as_json()) == memory
