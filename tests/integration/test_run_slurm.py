"""`tfdist run --engine slurm` with programs that stand for Slurm's; `tests/soak/slurm.py` has a real one."""

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agents import (
    DEADLINE_SECONDS,
    TRIAL,
    agent,
    another_host,
    environment,
    finished,
    own_lines,
    says,
    searched,
    wait_until,
)
from tfdist.jobs.launchers.launcher_table import LAUNCHERS
from tfdist.jobs.launchers.slurm import SlurmLauncher, tell_why_it_waits
from tfdist.variables import SLURM_REQUEUE

pytestmark = pytest.mark.quick

SBATCH = """#!/bin/sh
cat > "$SHARED/batch"
grep -q -- '--partition=none' "$SHARED/batch" && { echo 'invalid partition' >&2; exit 1; }
echo 42
grep -q -- '--begin=later' "$SHARED/batch" && { while [ ! -e "$SHARED/cancelled" ]; do sleep 0.05; done; exit 1; }
export SLURM_JOB_NODELIST='127.0.0.[1-2]' SLURM_TASKS_PER_NODE='1(x2)' SLURM_PROCID=0 SLURM_STEP_ID=0
last=$(sed -n 's/^#SBATCH --array=0-//p' "$SHARED/batch")
[ -z "$last" ] && { bash "$SHARED/batch" > tfdist-42.log 2>&1; exit $?; }
most=0
for SLURM_ARRAY_TASK_ID in $(seq 0 "$last"); do
    export SLURM_ARRAY_TASK_ID
    bash "$SHARED/batch" > "tfdist-42_$SLURM_ARRAY_TASK_ID.log" 2>&1
    code=$?
    [ $code -gt $most ] && most=$code
done
exit $most
"""
SRUN = """#!/bin/sh
while [ "$1" != /bin/sh ]; do shift; done
exec "{host}" node "$3"
"""
SQUEUE = """#!/bin/sh
case "$*" in
    *%T*) cat "$SHARED/state";;
    *) grep -q -- '--begin=later' "$SHARED/batch" && echo BeginTime;;
esac
"""
SCONTROL = """#!/bin/sh
[ "$1" = show ] && exit 0
[ "$2" = 13 ] && { echo "no such job" >&2; exit 1; }
echo "scontrol $@" >> "$SHARED/cancels"
"""
SCANCEL = '#!/bin/sh\necho "$@" >> "$SHARED/cancels"\ntouch "$SHARED/cancelled"\n'


@pytest.fixture
def slurm(shared: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments by which `agent` finds these programs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    srun = SRUN.format(host=another_host(tmp_path))
    for name, text in (
        ("sbatch", SBATCH),
        ("srun", srun),
        ("squeue", SQUEUE),
        ("scancel", SCANCEL),
        ("scontrol", SCONTROL),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"shared": shared, "cwd": tmp_path, "env": environment(shared, PATH=path)}


def test_a_job_is_submitted_followed_and_its_exit_code_kept(slurm: dict[str, Any], script: Any, shared: Path) -> None:
    path = script(
        """
        print(os.environ["TFDIST_WORKERS"].count("127.0.0.2"), "SLURM_PROCID" in os.environ, sys.argv[1:], flush=True)
        if not ME:
            tell("printed")
        wait_told("printed")  # before a failure ends the job
        sys.exit(7 if ME else 0)
        """
    )
    options = ("--engine", "slurm", "-n", 2, "--sbatch", "--nodes=2 --time=10", path, "--sbatch", "a b")
    code, out, err = finished(*options, **slurm)
    assert (code, "job 42 is in" in err) == (7, True), err
    for worker in range(2):
        assert own_lines(out, worker)[0] == "1 False ['--sbatch', 'a b']"
    assert "worker 1 of 2 failed first" in out
    batch = (shared / "batch").read_text().splitlines()
    assert {"#SBATCH --ntasks=2", "#SBATCH --nodes=2", "#SBATCH --time=10", "#SBATCH --signal=B:TERM@60"} <= set(batch)
    shown = finished("--dry-run", "--grace-seconds", 300, *options, **slurm)
    longer = [line.replace("TERM@60", "TERM@315").replace(" run ", " run --grace-seconds 300 ") for line in batch]
    assert (shown[0], shown[1].splitlines()) == (0, longer)


def ended_in_the_queue(
    options: str, count: int, slurm: dict[str, Any], script: Any, shared: Path
) -> tuple[int, list[str]]:
    """Send Ctrl-C to a job that waits; return its exit code, and so many commands that Slurm was given for it."""
    with agent("--engine", "slurm", "--sbatch", options, script(""), **slurm) as process:
        assert process.stderr is not None
        assert b"job 42 is in the queue" in process.stderr.readline()
        assert b"job 42 waits: BeginTime" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: len((shared / "cancels").read_text().splitlines()) == count, "it was not cancelled twice")
    return process.returncode, (shared / "cancels").read_text().splitlines()


def test_one_that_waits_says_why_and_ctrl_c_takes_it_out(slurm: dict[str, Any], script: Any, shared: Path) -> None:
    code, said = ended_in_the_queue("--begin=later", 2, slurm, script, shared)
    assert set(said) == {"--batch --signal=TERM 42", "--state=PENDING 42"}
    assert code == 1


def test_ctrl_c_before_slurm_has_told_the_number_ends_the_job_too(
    slurm: dict[str, Any], script: Any, shared: Path
) -> None:
    sbatch = Path(slurm["env"]["PATH"].partition(os.pathsep)[0]) / "sbatch"
    waits = 'touch "$SHARED/taken"; while [ ! -e "$SHARED/tell" ]; do sleep 0.05; done\necho 42'
    sbatch.write_text(SBATCH.replace("echo 42", waits))
    with agent("--engine", "slurm", "--sbatch", "--begin=later", script(""), **slurm) as process:
        wait_until((shared / "taken").exists, "nothing was submitted")
        process.send_signal(signal.SIGINT)
        (shared / "tell").touch()
        process.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: len((shared / "cancels").read_text().splitlines()) == 2, "it was not cancelled")
    assert process.returncode == 1


def test_one_that_had_to_stop_is_put_into_the_queue_again_where_that_was_asked_for(
    slurm: dict[str, Any], shared: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script("")
    for options, is_asked in (("--requeue --nodes=2", True), ("--nodes=2", False)):
        _, shown, _ = finished("--engine", "slurm", "--dry-run", "--sbatch", options, path, **slurm)
        assert (f"export {SLURM_REQUEUE.name}=1" in shown) == is_asked
    for name in ("PATH", "SHARED"):
        monkeypatch.setenv(name, slurm["env"][name])
    said: list[str] = []
    asked = {SLURM_REQUEUE.name: "1", "SLURM_JOB_ID": "42"}
    assert SlurmLauncher().run(lambda: 143, say=said.append) == 143
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    for code in (143, 0, 1):
        assert SlurmLauncher().run(lambda code=code: code, say=said.append) == code  # type: ignore[misc]
    assert (shared / "cancels").read_text() == "scontrol requeue 42\n"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    assert SlurmLauncher().run(lambda: 143, say=said.append) == 143
    again, lost = said
    assert says(again, "job 42 is", "again")
    assert says(lost, "job 13 is not", ": no such job")


def test_one_that_slurm_has_taken_back_says_why_it_waits_again(
    slurm: dict[str, Any], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SHARED"):
        monkeypatch.setenv(name, slurm["env"][name])
    programs = Path(slurm["env"]["PATH"].partition(os.pathsep)[0])
    # what squeue says of it, look by look: it waits, runs, and waits again for the same reason
    (programs / "squeue").write_text(
        '#!/bin/sh\nread -r reason < "$SHARED/reasons"\nsed -i 1d "$SHARED/reasons"\necho $reason\n'
    )
    (shared / "reasons").write_text("None\nPriority\nPriority\n\nPriority\nResources\n")
    (programs / "scontrol").write_text(
        '#!/bin/sh\n[ "$*" = "show job -o 42" ] && echo "JobId=42 Restarts=$(cat "$SHARED/times") x"\n'
    )
    (shared / "times").write_text("0")
    said: list[str] = []
    ended = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        (shared / "times").write_text(str(len(said)))
        if len(said) == 3:
            ended.set()

    tell_why_it_waits("42", ended, say, queue_seconds=0.01, running_seconds=0.02)
    assert [text.partition(" (Ctrl-C ")[0].split(", ")[0] for text in said] == [
        "job 42 waits: Priority",
        "job 42 waits: Priority",
        "job 42 waits: Resources",
    ]
    assert [re.findall(r"started (\d+) time", text) for text in said] == [[], ["1"], ["2"]]


def test_ctrl_c_lets_none_come_back(slurm: dict[str, Any], script: Any, shared: Path) -> None:
    _, said = ended_in_the_queue("--begin=later --requeue", 3, slurm, script, shared)
    assert said.index("scontrol update JobId=42 Requeue=0") < said.index("--batch --signal=TERM 42")


@pytest.mark.parametrize(
    ("state", "said"), [("CANCELLED", "cancelled by"), ("TIMEOUT", "its time was up"), ("FAILED", "")]
)
def test_what_slurm_or_somebody_else_has_ended_is_said(
    state: str, said: str, slurm: dict[str, Any], script: Any, shared: Path
) -> None:
    (shared / "state").write_text(f"{state}\n{state}\n")  # once for each part of a job
    (shared / "cancelled").write_text("x")
    code, _, err = finished("--engine", "slurm", "--sbatch", "--begin=later", script(""), **slurm)
    assert code == 1
    assert err.count("tfdist run: job 42 ") == 1 + bool(said), err
    assert said in err


def test_what_cannot_be_submitted(slurm: dict[str, Any], script: Any, shared: Path) -> None:
    code, _, err = finished("--engine", "slurm", "--sbatch", "--partition=none", script(""), **slurm)
    assert (code, "invalid partition" in err, "sbatch has not" in err) == (1, True, True)
    code, _, err = finished("--engine", "slurm", "missing.py", **slurm)
    assert (code, "missing.py" in err) == (2, True)
    slurm["env"]["PATH"] = "/usr/bin:/bin"
    code, _, err = finished("--engine", "slurm", script(""), **slurm)
    assert (code, "needs sbatch" in err) == (1, True)
    code, _, err = finished("--engine", "local", "--hosts", "a", script(""), **slurm)
    assert (code, "names others" in err) == (2, True)


def test_what_a_worker_needs_is_asked_of_slurm(slurm: dict[str, Any], script: Any) -> None:
    asked = ("--cpus-per-worker", 4, "--memory-per-worker=10G", "--gpus-per-worker", 1)
    path = script("", name="train it.py")
    code, out, err = finished("--engine", "slurm", "-n", 2, *asked, "--dry-run", path, **slurm)
    assert code == 0, err
    lines = out.splitlines()
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --mem-per-cpu=2560M", "#SBATCH --gpus-per-task=1"} <= set(lines)
    assert " --engine slurm -n 2 --gpus-per-worker 1 '" in lines[-1]
    for said, options in (
        ("--cpus-per-worker is 0.5", ("--engine", "slurm", "--cpus-per-worker", 0.5)),
        ("--cpus-per-worker is inf", ("--engine", "slurm", "--cpus-per-worker", "inf")),
        ("--cpus-per-worker: for --engine slurm", ("--engine", "mpi", "--hosts", "a", "--cpus-per-worker", 1)),
        ("--memory-per-worker: for --engine slurm", ("--memory-per-worker", "1G")),
        ("--gpus-per-worker", ("--gpus-per-worker", 0.5)),
    ):
        code, _, err = finished(*options, script(""), **slurm)
        assert (code, said in err) == (2, True), err
    slurm["env"] |= {"SLURM_JOB_NODELIST": "n1"}
    code, _, err = finished("--engine", "slurm", "--cpus-per-worker", 1, script(""), **slurm)
    assert (code, "salloc" in err) == (2, True), err


def test_the_table_of_launchers(slurm: dict[str, Any], shared: Path) -> None:
    code, out, _ = finished("--engines", **slurm)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["launcher", *LAUNCHERS])


def test_a_search_is_an_array_of_which_each_job_has_its_arguments(slurm: dict[str, Any], script: Any) -> None:
    path = script("print(sys.argv[1:], flush=True)\nsys.exit(3 if '--rate=0.01' in sys.argv else 0)")
    options = ("--engine", "slurm", "-n", 1, "--search=--rate=0.1,0.01", "--search", "--name=a b", path, "--search")
    code, out, err = finished(*options, **slurm)
    assert code == 3, err
    assert "job 42_1 has --rate=0.01 '--name=a b'" in err
    for job, rate in enumerate(("0.1", "0.01")):
        lines = [line for line in out.splitlines() if line.startswith(f"[42_{job}] ")]
        assert any(line.endswith(f"['--search', '--rate={rate}', '--name=a b']") for line in lines), out


@pytest.mark.thorough
def test_trials_of_a_search_are_jobs_in_the_queue_or_steps_of_an_allocation(slurm: dict[str, Any], script: Any) -> None:
    path, env = script(TRIAL), {**slurm["env"], "CUDA_VISIBLE_DEVICES": "-1"}
    options = ("--engine", "slurm", "--trials", 2, path)
    more = {"shared": slurm["shared"], "cwd": slurm["cwd"]}
    logs = searched("--slots", 1, "--run-options", "--sbatch --time=5", *options, env=env, **more)
    assert len(logs) == 2
    assert all("job 42 " in log for log in logs)
    assert "--time=5" in (slurm["shared"] / "batch").read_text()
    (slurm["shared"] / "search").rename(slurm["shared"] / "first")
    inside = {"SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    logs = searched(*options, env={**env, **inside}, **more)
    assert [("at 127.0.0.1" in log, "at 127.0.0.2" in log) for log in logs] == [(True, False), (False, True)], logs


def test_a_chief_and_servers_are_a_component_of_their_own(slurm: dict[str, Any], script: Any) -> None:
    more = ("--sbatch", "--time=10 --partition=gpu", "--gpus-per-worker", 1)
    servers = ("--parameter-servers", 2, "--sbatch-servers", "--partition=cpu")
    given = ("--dry-run", "--engine", "slurm", "--strategy", "parameter-server", "-n", 4, *servers, *more, script(""))
    code, out, err = finished(*given, **slurm)
    assert code == 0, err
    first, second = ([line for line in part.splitlines() if "SBATCH" in line] for part in out.split("#SBATCH hetjob"))
    assert {"#SBATCH --ntasks=3", "#SBATCH --time=10"} <= set(first)
    assert first[-1] == "#SBATCH --partition=cpu"  # of two the last counts
    assert second == [f"#SBATCH {option}" for option in ("--ntasks=4", "--gpus-per-task=1", *more[1].split())]
    assert "--sbatch-servers" not in out


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--engine", "slurm", "--sbatch-servers", "-p cpu"), "the job has none"),
        (("--engine", "slurm", "--dry-run", "--sbatch", "--comment='a"), "close the quote"),
        (("--search", "--rate=1"), "--search is for"),
        (("--engine", "slurm", "--search", "--rate"), "NAME=VALUE,VALUE"),
        (("--engine", "slurm", "--search", "--rate=1,1"), "NAME=VALUE,VALUE"),
        (("--engine", "slurm", "--search", "--rate=1", "--search", "--rate=2"), "each once"),
        (("--engine", "slurm", "--search", f"--rate={','.join(map(str, range(1001)))}"), "1001 jobs"),
    ],
)
def test_searches_and_components_that_cannot_be(
    options: tuple[str, ...], what: str, slurm: dict[str, Any], script: Any
) -> None:
    code, _, err = finished(*options, script(""), **slurm)
    assert (code, what in err, "Traceback" in err) == (2, True, False), err
