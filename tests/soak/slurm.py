"""Run jobs under a real Slurm with two nodes, and check that their results are those of a job on one host.

    python -m tests.soak.slurm [--root FOLDER] [trial ...]

The nodes are namespaces (`machines.py`), so it needs root and iproute2. It also needs Slurm's slurmctld, slurmd and
commands, which Debian has in the packages slurmctld, slurmd, slurm-client and munge. If these are not installed, FOLDER
is the folder of the unpacked packages. Connections are authenticated by munge.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.agents import PRELUDE
from tests.integration.test_run_resize import FOREVER
from tests.soak.machines import LAUNCHER, Machines, machines, quoted
from tests.soak.trials import RESUMABLE, SECONDS, Trial, wait_until

CONFIG = """
ClusterName=trial
SlurmctldHost=launcher
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=15
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
PluginDir={root}/usr/lib/x86_64-linux-gnu/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=a NodeAddr={a} CPUs=2 RealMemory=8000 State=UNKNOWN
NodeName=b NodeAddr={b} CPUs=2 RealMemory=8000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=preempt_send_user_signal
PartitionName=all Nodes=a,b Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=a,b MaxTime=INFINITE State=UP PriorityTier=2
"""

URGENT = ("sbatch", "--parsable", "-p", "urgent", "-N", "2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
TRAINING = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
# what a worker has done goes into a file of its own; before its third step one of them holds, once, until it is let go
HOLDING = """
import os, pathlib, runpy, sys, time
import keras
folder, me = pathlib.Path(sys.argv[1]), os.environ["TFDIST_WORKER_INDEX"]
begin, end = keras.callbacks.CallbackList.on_train_batch_begin, keras.callbacks.CallbackList.on_train_batch_end
steps = []
def hold(self, batch, logs=None):
    steps.append(batch)
    if (len(steps), me) == (3, "1") and not (folder / "holds").exists():
        (folder / "holds").touch()
        while not (folder / "go on").exists():
            time.sleep(0.05)
    begin(self, batch, logs)
def count(self, batch, logs=None):
    end(self, batch, logs)
    with open(folder / f"steps {me}", "a") as file:
        file.write(f"{batch}\\n")
keras.callbacks.CallbackList.on_train_batch_begin = hold
keras.callbacks.CallbackList.on_train_batch_end = count
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def program(root: Path, name: str) -> str:
    """Return the path of a daemon, which Debian gives another name in the package."""
    found = [path for path in (root / f"usr/sbin/{name}", root / f"usr/sbin/{name}-wlm") if path.exists()]
    assert found, f"{name} is not in {root}/usr/sbin"
    return str(found[0])


@contextlib.contextmanager
def with_slurm(found: Machines, root: Path) -> Iterator[None]:
    """Start the controller beside the launcher and a daemon on each node, and wait until the nodes are idle."""
    folder = found.folder
    values = {
        "folder": folder,
        "root": root if root != Path("/") else "",
        "a": found.address("a"),
        "b": found.address("b"),
    }
    (folder / "slurm.conf").write_text(CONFIG.format(**values))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # of which nothing here makes use
    for name in ("state", "spool_a", "spool_b", "munge"):
        (folder / name).mkdir()
    munge = folder / "munge"
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o600)
    files = [f"--{what}={munge / what.partition('-')[0]}" for what in ("key-file", "pid-file", "log-file", "seed-file")]
    munged = quoted(f"{root}/usr/sbin/munged".replace("//", "/"), "--force", f"--socket={munge / 'socket'}", *files)
    libraries = f"{root}/usr/lib/x86_64-linux-gnu"
    found.variables |= {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "LD_LIBRARY_PATH": f"{libraries}/slurm-wlm:{libraries}",
        "PATH": f"{root}/usr/bin:{os.environ['PATH']}",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(found.service(LAUNCHER, f"{munged} && exec {quoted(program(root, 'slurmctld'), '-D')}"))
        for name in ("a", "b"):
            daemon = quoted(program(root, "slurmd"), "-D", "-N", name, "-d", program(root, "slurmstepd"))
            stack.enter_context(found.service(name, f"mount -t tmpfs none /sys/fs/cgroup; exec {daemon}"))
        try:
            wait_until(lambda: command(found, "sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"])
        except AssertionError:
            logs = {name: (folder / f"{name}.log").read_text()[-2000:] for name in ("a", LAUNCHER)}
            raise RuntimeError(logs) from None
        yield


def command(found: Machines, *words: str) -> str:
    """Run a command of Slurm's beside the launcher; return what it prints."""
    environ = {**os.environ, **found.variables}
    done = subprocess.run(found.inside(LAUNCHER, words), env=environ, capture_output=True, text=True, check=False)
    return done.stdout


class UnderSlurm(Trial):
    """Jobs that are submitted by the launcher."""

    def __init__(self, found: Machines) -> None:
        super().__init__(found.folder, found)
        self.found = found
        self._local = ""

    def local(self) -> str:
        """Return the result of TRAINING on one host."""
        self._local = self._local or self.trained(*TRAINING)[0]
        return self._local


def equal_to_the_bit(trial: UnderSlurm) -> None:
    """A job that is submitted has the weights of one on one host, also when a worker is killed."""
    submitted = (*TRAINING, "--engine", "slurm", "--sbatch", "--nodes=2")
    assert trial.trained(*submitted)[0] == trial.local()
    kill = json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 3}])
    more = {"TFDIST_FAULTS": kill, "OWN_BACKUPS": "1"}
    assert trial.trained(*submitted, "--max-restarts", 1, "--hang-seconds", 60, **more)[0] == trial.local()
    print("multi-worker native: one host, two nodes, and two with a worker killed: equal to the bit", flush=True)


def what_is_shown_and_what_ends(trial: UnderSlurm) -> None:
    """Lines are followed, an exit code is kept, Ctrl-C ends the job, and nothing is left in the queue."""
    script = trial.folder / "script.py"
    code = (
        "import os, socket, sys\nprint(socket.gethostname(), 'SLURM_PROCID' in os.environ, flush=True)\nsys.exit(7)\n"
    )
    script.write_text(code)
    out = trial.run("--engine", "slurm", "-n", 4, "--sbatch", "--nodes=2 --ntasks-per-node=2", script, code=7)
    lines = sorted(line for line in out.splitlines() if line.startswith("[worker"))
    assert {f"[worker {worker}] {'aabb'[worker]} False" for worker in range(4)} >= set(lines), out
    assert lines, out
    assert "failed first" in out, out
    key = trial.folder / "the key"
    told = f"open({str(key)!r}, 'w').write(os.environ['TFDIST_JOB_KEY'])"
    script.write_text(f"import os, time\n{told}\nprint('here', flush=True)\ntime.sleep(10_000)\n")
    with trial.started("--engine", "slurm", "-n", 2, "--sbatch", "--nodes=2 --requeue", script) as process:
        wait_until(lambda: any("[worker 1] here" in log.read_text() for log in trial.folder.glob("tfdist-*.log")))
        secret = key.read_text().encode()
        key.unlink()
        found = [path for path in trial.folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
        assert (len(secret), found) == (64, []), "a file has the key: of the queue, of a daemon, or a log"
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                assert secret not in line.read_bytes()
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    wait_until(lambda: not command(trial.found, "squeue", "-h").strip())
    print("the key of the job is in no command line, file of Slurm's, or log")
    print(f"Ctrl-C: exit code {process.returncode} after {time.monotonic() - begun:.0f} s, the queue is empty")
    assert process.returncode != 0
    with trial.started("--engine", "slurm", "-n", 3, "--sbatch", "--nodes=3", script) as process:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert "waits: PartitionNodeLimit" in said[1], said
    assert not command(trial.found, "squeue", "-h").strip()
    assert "sbatch has not" in trial.run("--engine", "slurm", "--sbatch", "--partition=x", script, code=1)
    print("lines of both nodes are followed, exit code 7 is kept; what a job waits for, and refusals, are said")


def what_each_worker_is_given(trial: UnderSlurm) -> None:
    """A node takes as many workers as have CPUs there, with the memory that was asked for, and none counts twice."""
    script = trial.folder / "given.py"
    script.write_text(
        "import os, socket\nprint(socket.gethostname(), *map(os.environ.get, "
        "('SLURM_JOB_CPUS_PER_NODE', 'SLURM_MEM_PER_CPU', 'SLURM_CPUS_PER_TASK')), flush=True)\n"
    )
    for asked, places, memory in (
        (("-n", 4, "--cpus-per-worker", 1, "--memory-per-worker", "512M"), "aabb", 512),
        (("-n", 2, "--cpus-per-worker", 2, "--memory-per-worker", "2G"), "ab", 1024),
    ):
        out = trial.run("--engine", "slurm", *asked, script)
        lines = {line for line in out.splitlines() if line.startswith("[worker")}
        wanted = {f"[worker {worker}] {node} 2(x2) {memory} None" for worker, node in enumerate(places)}
        assert lines == wanted, out
    refused = trial.run("--engine", "slurm", "-n", 1, "--memory-per-worker", "64G", script, code=1)
    assert "sbatch has not" in refused, refused
    print("four workers of a CPU and 512 MiB, two of two CPUs and 2 GiB: places and memory; too much is refused")


def components_and_arrays(trial: UnderSlurm) -> None:
    """A chief and servers are a component of their own, to the same bit; an array has one job for each value."""
    options = ("--strategy", "parameter-server", "-n", 2, "--parameter-servers", 1)
    variables = {"TFDIST_MAX_STALENESS": "0"}
    local, _ = trial.trained(*options, **variables)
    apart = (
        *options,
        "--engine",
        "slurm",
        "--cpus-per-worker",
        1,
        "--sbatch-servers",
        "--nodelist=a",
        "--sbatch",
        "-N 1",
    )
    assert trial.trained(*apart, **variables)[0] == local
    script = trial.folder / "script.py"
    script.write_text(
        "import socket, sys\nprint(socket.gethostname(), sys.argv[1:], flush=True)\nsys.exit('-x=2' in sys.argv)\n"
    )
    searched = ("--engine", "slurm", "--sbatch", "--array=0-3%2", "--search=-x=1,2", "--search=-y=3,4")
    out = trial.run(*searched, script, code=1)
    for number, words in enumerate((("1", "3"), ("1", "4"), ("2", "3"), ("2", "4"))):
        said = f"['-x={words[0]}', '-y={words[1]}']"
        assert any(f"_{number}] " in line and said in line for line in out.splitlines()), out
    assert not command(trial.found, "squeue", "-h").strip()
    print("a chief and a server beside two workers in two components: equal to the bit; an array of four, two at once")


def stopped_and_requeued(trial: UnderSlurm) -> None:
    """A job that has to make room, or whose time is up, stops before one step, and goes on there when it may."""
    script = trial.folder / "script_steps.py"
    script.write_text(PRELUDE + FOREVER.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"'))
    for what, asked in (("preempted", ""), ("its time was up", "--time=2")):
        shared, events = trial.folder / what, trial.folder / f"events, {what}"
        shared.mkdir()

        def stepped(events: Path = events) -> int:
            return events.read_text().count('"stepping"') if events.exists() else 0

        options = ("--engine", "slurm", "-n", 2, "--event-file", events, "--pass-env", "SHARED")
        more = ("--sbatch", f"--nodes=2 --requeue {asked}")
        with trial.started(*options, *more, script, SHARED=str(shared)) as process:
            wait_until(lambda: stepped() == 1, seconds=SECONDS)
            begun = time.monotonic()
            assert asked or command(trial.found, *URGENT).strip().isdigit()
            wait_until(lambda: stepped() == 2, seconds=SECONDS)
            again = time.monotonic() - begun
            (shared / "enough").touch()
            out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, out
        halted = {(shared / f"halted 0 {worker}").read_text() for worker in range(2)}
        steps = json.loads((shared / "done 0").read_text())
        assert (len(halted), steps) == (1, list(range(len(steps)))), (halted, len(steps))
        print(
            f"{what}: all stopped before step {halted.pop()} of {len(steps)}, none is lost or repeated; stepping again "
            f"after {again:.0f} s",
            flush=True,
        )


def a_training_makes_room(trial: UnderSlurm) -> None:
    """A training that has to make room comes to what one on one host does."""
    interrupted(trial, "preempted", does=URGENT)


def a_training_out_of_time(trial: UnderSlurm) -> None:
    """So does one whose time is up: Slurm says so a minute before, or two, and each start needs some."""
    interrupted(trial, "its time was up", options="--time=4")


def a_training_that_slurm_kills(trial: UnderSlurm) -> None:
    """So does one that Slurm kills without a signal, and one of which a node is down."""
    interrupted(trial, "killed and queued again by somebody", does=("scontrol", "requeue", "JOB"), is_asked=False)
    down = ("scontrol", "update", "NodeName=b", "State=DOWN", "Reason=trial")
    interrupted(trial, "a node was down", does=down, is_asked=False)


def interrupted(
    trial: UnderSlurm, what: str, *, options: str = "", does: tuple[str, ...] = (), is_asked: bool = True
) -> None:
    """Train with an interruption before the third step.

    Args:
        trial: runs it.
        what: is done to it.
        options: of sbatch.
        does: the command for that, in which JOB stands for the job; none: Slurm does it by itself.
        is_asked: whether the job gets a signal, and time.
    """
    local, told = trial.local(), trial.folder / what
    told.mkdir()
    (trial.folder / "holding.py").write_text(HOLDING)
    result, events = told / "result", told / "events"
    submitted = (*TRAINING, "--engine", "slurm", "--event-file", events, "--sbatch", f"-N 2 --requeue {options}")
    words = (trial.folder / "holding.py", told, RESUMABLE, result, told / "backup", "tfdist", "1")
    with trial.started(*submitted, *words) as process:
        wait_until((told / "holds").exists, seconds=SECONDS)
        job = command(trial.found, "squeue", "-h", "-t", "R", "-p", "all", "-o", "%i").strip()
        assert job.isdigit(), job
        begun = time.monotonic()
        command(trial.found, *(job if word == "JOB" else word for word in does))
        if is_asked:
            log = trial.folder / f"tfdist-{job}.log"
            wait_until(lambda: "stop after this step" in log.read_text(), seconds=SECONDS)
            (told / "go on").touch()
        else:
            wait_until(lambda: "R" not in command(trial.found, "squeue", "-h", "-j", job, "-o", "%t").split())
            command(trial.found, "scontrol", "update", "NodeName=b", "State=RESUME")
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out
    assert result.read_text() == local, what
    done = [(told / f"steps {worker}").read_text().split() for worker in range(2)]
    stepping = [one for one in map(json.loads, events.read_text().splitlines()) if one["event"] == "stepping"]
    repeated = [len(steps) - len(json.loads(local)["seen"]) for steps in done]
    assert len(stepping) == 2, stepping
    assert repeated == [0, 0] or not is_asked, done
    print(
        f"a training, {what}: equal to the bit; went on at step {stepping[1]['resumed']}, {max(repeated)} repeated, "
        f"{stepping[1]['clock'] - begun:.0f} s later",
        flush=True,
    )


def ended_by_others(trial: UnderSlurm) -> None:
    """A job that somebody else cancels, and one whose time is up, say so."""
    script = trial.folder / "script.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(10_000)\n")
    with trial.started("--engine", "slurm", "-n", 2, "--sbatch", "--nodes=2", script) as process:
        wait_until(lambda: command(trial.found, "squeue", "-h", "-o", "%T").strip() == "RUNNING", seconds=SECONDS)
        job = command(trial.found, "squeue", "-h", "-o", "%i").strip()
        logs = trial.folder.glob
        wait_until(
            lambda: any("[worker 1] here" in one.read_text() for one in logs(f"tfdist-{job}.log")), seconds=SECONDS
        )
        command(trial.found, "scancel", job)
        out, _ = process.communicate(timeout=SECONDS)
    assert f"job {job} was cancelled" in out, out
    assert process.returncode, out
    wait_until(lambda: not command(trial.found, "squeue", "-h").strip())
    print(f"cancelled by somebody else: said, exit code {process.returncode}", flush=True)


TRIALS = {
    trial.__name__: trial
    for trial in (
        what_is_shown_and_what_ends,
        what_each_worker_is_given,
        components_and_arrays,
        equal_to_the_bit,
        stopped_and_requeued,
        a_training_makes_room,
        a_training_out_of_time,
        a_training_that_slurm_kills,
        ended_by_others,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("trials", nargs="*", default=list(TRIALS))
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = stack.enter_context(machines(["a", "b"], folder))
        stack.enter_context(with_slurm(found, options.root))
        trial = UnderSlurm(found)
        for name in options.trials:
            TRIALS[name](trial)


if __name__ == "__main__":
    main()
