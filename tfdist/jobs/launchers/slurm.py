"""The launcher `slurm`: srun within an allocation, and a batch job if there is none yet.

The batch script runs the same `tfdist run` on the first node, which reaches the others by srun. `--sbatch` passes
Slurm's own options on.
"""

import contextlib
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfdist.cluster.hostlist import expand, expand_counts
from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.launchers.launcher import Launcher, agent_command
from tfdist.jobs.plan.host_plan import Host, Remote, parse_shell
from tfdist.jobs.plan.worker_spec import VISIBLE
from tfdist.validation import counted, parse_integer
from tfdist.variables import SLURM_REQUEUE
from tfdist.waiting import handled, wait_heeding_signals

#: prefixes of variables that describe a step of Slurm, or a process of an MPI job
OF_A_STEP = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_SRUN"),
    *("PMI_", "PMIX_", "PRTE_"),
)
_OF_A_TASK = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_FOLLOW_SECONDS = 0.2
_QUEUE_SECONDS = 2.0  # from one question why a job waits to the next
_RUNNING_SECONDS = 30.0  # to the next where it runs: Slurm may take it back into the queue
_ASK_SECONDS = 30.0
_LOG, _LOG_OF_TASK = "tfdist-%j.log", "tfdist-%A_%a.log"
_ENDS = {  # states of Slurm's that are no exit code of the job's
    "CANCELLED": "was cancelled by another user or command",
    "TIMEOUT": "was ended by Slurm: its time was up",
    "PREEMPTED": "was ended by Slurm, to make room for another one (--sbatch --requeue has it start again)",
    "NODE_FAIL": "was ended by Slurm: a node has failed (--sbatch --no-kill lets it continue)",
    "OUT_OF_MEMORY": "was ended by Slurm: it took more memory than it was given (--memory-per-worker)",
    "DEADLINE": "was ended by Slurm: its deadline was over",
}
MOST_TASKS = 1000  # of an array: Slurm's default limit
#: options of `tfdist run` with a value, for the submission alone: Slurm has given what they ask for when the job
#: begins; which GPUs a worker has is decided there
OF_THE_SUBMISSION = ("--sbatch", "--sbatch-servers", "--search", "--cpus-per-worker", "--memory-per-worker")


class SlurmLauncher(Launcher):
    """A launcher that reaches each node of an allocation by a step of srun; outside of one, it submits the job."""

    name = "slurm"
    program = "srun"
    install = "Run it where Slurm's commands are."
    by_command = True
    no_hosts = "Submit it: tfdist run --engine slurm does so outside of an allocation."
    removed = OF_A_STEP
    of_each_host = (VISIBLE,)
    accepts = frozenset({"cpus", "gpus", "memory"})
    decided = (
        "this runs in an allocation of Slurm, where that is decided. Ask for it there: salloc --cpus-per-task=4 "
        "--mem-per-cpu=2G"
    )
    submits = True
    does_without = True
    adds_workers = "within the allocation"
    notice = "--signal=B:TERM@SECONDS"

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        return hosts_of_slurm(environ)

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        component = () if host.group is None else (f"--het-group={host.group}",)
        where = ("--nodes=1", "--ntasks=1", f"--nodelist={host.name}", *component)
        options = (*where, "--overlap", "--cpu-bind=none", "--unbuffered")
        left_out = [word for name in _OF_A_TASK for word in ("-u", name)]  # the step is one task with the whole node
        return ("env", *left_out, *remote.shell, *options, "/bin/sh", "-c", agent_command(remote, environ))

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        """Run a job; with `--requeue`, requeue one that saved and ended: Slurm itself requeues only what it kills."""
        code = launch()
        if code == 128 + signal.SIGTERM and SLURM_REQUEUE.read(os.environ):
            job = os.environ.get("SLURM_JOB_ID", "")
            try:
                done = subprocess.run(
                    ["scontrol", "requeue", job], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
                )
                error = done.stderr.strip() if done.returncode else ""
            except (OSError, subprocess.TimeoutExpired) as failure:
                error = str(failure)
            say(f"job {job} is not started again: {error}" if error else f"job {job} is in the queue again")
        return code


def hosts_of_slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the nodes of a Slurm allocation, with one slot for each task there; none outside of an allocation.

    Example:
        >>> found = hosts_of_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"})
        >>> [(host.name, host.slots) for host in found]
        [('n1', 2), ('n2', 1)]
        >>> name = "SLURM_JOB_NODELIST_HET_GROUP_"
        >>> found = hosts_of_slurm({"SLURM_HET_SIZE": "2", f"{name}0": "c", f"{name}1": "g"})
        >>> [(host.name, host.group) for host in found]
        [('c', 0), ('g', 1)]
    """
    components = environ.get("SLURM_HET_SIZE")
    if not components:
        return _nodes(environ, "", None)
    found: list[Host] = []
    for group in range(parse_integer("SLURM_HET_SIZE", components, minimum=1)):
        found += _nodes(environ, f"_HET_GROUP_{group}", group)
    names = [host.name for host in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)} is in two components of the heterogeneous job, and a host is in one. Have Slurm give "
            "each component nodes of its own: by another partition or constraint, or with --exclusive for one of them."
        )
    return tuple(found)


def _nodes(environ: Mapping[str, str], suffix: str, group: int | None) -> tuple[Host, ...]:
    """Return the nodes of an allocation, or of one component, whose variables have this suffix."""
    of_nodes, of_tasks = f"SLURM_JOB_NODELIST{suffix}", f"SLURM_TASKS_PER_NODE{suffix}"
    nodes = environ.get(of_nodes)
    if not nodes:
        return ()
    names = expand(nodes, name=of_nodes)
    tasks = environ.get(of_tasks)
    counts = expand_counts(tasks, name=of_tasks) if tasks else [1] * len(names)
    if len(counts) != len(names):
        raise ConfigError(
            f"{of_nodes} is {nodes!r}, of {len(names)} nodes, and {of_tasks} {tasks!r} has {len(counts)}. Name the "
            f"hosts: --hosts {','.join(names)}"
        )
    found = zip(names, counts, strict=True)
    return tuple(Host(name=name, address=name, slots=count, group=group) for name, count in found)


def resources(*, cpus: float | None = None, gpus: float | None = None, memory: int | None = None) -> tuple[str, ...]:
    """Return options of sbatch for the needs of each task. Memory is requested per CPU, rounded up to MiB."""
    for option, count in (("--cpus-per-worker", cpus), ("--gpus-per-worker", gpus)):
        if count is not None and (count < 1 or not float(count).is_integer()):
            raise ConfigError(f"{option} is {count:g}; Slurm gives a task whole ones, at least 1.")
    found = []
    if cpus is not None:
        found.append(f"--cpus-per-task={int(cpus)}")
    if memory is not None:
        found.append(f"--mem-per-cpu={math.ceil(memory / (1 << 20) / (cpus or 1))}M")
    if gpus is not None:
        found.append(f"--gpus-per-task={int(gpus)}")
    return tuple(found)


def script(
    arguments: Sequence[str],
    *,
    name: str,
    processes: int,
    folder: str,
    python: str,
    grace_seconds: float,
    of_each: Sequence[str] = (),
    options: str = "",
    servers: int = 0,
    for_servers: str | None = None,
    searched: Sequence[Sequence[str]] = (),
) -> str:
    every = (f"--ntasks={processes}", *of_each)
    first = (f"--ntasks={1 + servers}",)
    own = (
        f"--job-name={re.sub(r'[^A-Za-z0-9_.-]', '_', name)}",
        *(first if for_servers is not None else every),
        f"--chdir={shlex.quote(folder)}",
        *((f"--array=0-{len(searched) - 1}",) if searched else ()),
        f"--output={_LOG_OF_TASK if searched else _LOG}",
        "--open-mode=append",  # of a job that is requeued nothing is lost
        f"--signal=B:TERM@{max(60, math.ceil(grace_seconds) + 15)}",  # all stop before the same step and save
    )
    given, of_servers = _options(options, "--sbatch"), _options(for_servers or "", "--sbatch-servers")
    lines = [f"#SBATCH {option}" for option in (*own, *given, *of_servers)]
    if for_servers is not None:
        second = (f"--ntasks={processes - 1 - servers}", *of_each, *given)
        lines += ["#SBATCH hetjob", *(f"#SBATCH {option}" for option in second)]
    cases = [f"{number}) set -- {shlex.join(more)};;" for number, more in enumerate(searched)]
    choice = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"] if searched else []
    again = [f"export {SLURM_REQUEUE.name}=1"] if "--requeue" in given else []
    command = shlex.join([python, "-m", "tfdist", "run", *arguments]) + (' "$@"' if searched else "")
    return "\n".join(["#!/bin/bash", *lines, *choice, *again, f"exec {command}", ""])


def searches(asked: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    axes: dict[str, list[str]] = {}
    for one in asked:
        name, _, values = one.partition("=")
        found = values.split(",")
        if not name or not all(found) or len(set(found)) < len(found) or name in axes:
            raise ConfigError(
                f"--search is {one!r}; it must be NAME=VALUE,VALUE with an argument of the script, each once, such as "
                "--search=--learning-rate=0.1,0.01"
            )
        axes[name] = [f"{name}={value}" for value in found]
    jobs = tuple(itertools.product(*axes.values())) if axes else ()
    if len(jobs) > MOST_TASKS:
        raise ConfigError(
            f"--search asks for {len(jobs)} jobs; at most {MOST_TASKS} can be in one array. Try fewer values."
        )
    return jobs


def _options(text: str, name: str) -> list[str]:
    return [shlex.quote(word) for word in (parse_shell(text, name=name) if text.strip() else ())]


def submit(text: str, *, say: Callable[[str], None], searched: Sequence[Sequence[str]] = ()) -> int:
    """Submit a script and follow it; return its exit code, or the largest of an array. Signals first let it save."""
    asking = _Asking(requeues=SLURM_REQUEUE.name in text)
    with handled(asking.heed):
        process = subprocess.Popen(
            ["sbatch", "--parsable", "--wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its exit code is told below
                process.stdin.write(text)
            with contextlib.suppress(BrokenPipeError):  # for what could not be written
                process.stdin.close()
            job = process.stdout.readline().strip().partition(";")[0]
            if not job:
                raise TfdistError(f"sbatch has not taken the job (exit code {process.wait()}); it says why above.")
        except BaseException:  # a second Ctrl-C: it must not submit the job later, when nobody follows it
            process.kill()
            process.wait()
            process.stdout.close()
            raise
        say(f"job {job} is in the queue of Slurm")
        for number, more in enumerate(searched):
            say(f"job {job}_{number} has {shlex.join(more)}")
        asking.begin(job)
        return _followed(process, job, len(searched), asking, say)


def _followed(
    process: "subprocess.Popen[str]", job: str, tasks: int, asking: "_Asking", say: Callable[[str], None]
) -> int:
    """Show a job's output until `sbatch` has ended; return its exit code. ``tasks`` is 0 unless it is an array."""
    ended = threading.Event()
    logs = {Path(_LOG.replace("%j", job)): b""}
    if tasks:
        of_array = _LOG_OF_TASK.replace("%A", job)
        logs = {Path(of_array.replace("%a", str(at))): f"[{job}_{at}] ".encode() for at in range(tasks)}
    followers = [
        threading.Thread(target=_follow, args=(logs, ended), name="log", daemon=True),
        threading.Thread(target=tell_why_it_waits, args=(job, ended, say), name="queue", daemon=True),
    ]
    for follower in followers:
        follower.start()
    try:
        code = wait_heeding_signals(process)
        for state in _column(job, "all", "%T"):
            if state in _ENDS and not (asking.times and state == "CANCELLED"):
                say(f"job {job} {_ENDS[state]}")
        return code
    finally:
        ended.set()
        for follower in followers:
            follower.join()


class _Asking:
    """A handler of signals to this process, which asks Slurm to end a job: first after saving, then at once."""

    def __init__(self, *, requeues: bool) -> None:
        self.times = 0
        self._told = 0  # of these, to Slurm
        self._requeues = requeues
        self._job = ""

    def begin(self, job: str) -> None:
        """Set the job's number; earlier signals count now."""
        self._job = job
        self._ask_as_often()

    def heed(self, _number: int, _frame: object) -> None:
        self.times += 1
        if self._job:
            self._ask_as_often()
        elif self.times > 1:  # Slurm does not answer
            raise KeyboardInterrupt

    def _ask_as_often(self) -> None:
        while self._told < self.times:
            self._told += 1
            self._ask(again=self._told > 1)

    def _ask(self, *, again: bool) -> None:
        how = () if again else ("--batch", "--signal=TERM")
        if self._requeues:  # it is to end, and not to come back
            command = 'scontrol update "JobId=$0" Requeue=0; exec scancel "$@" "$0"'
            subprocess.Popen(["sh", "-c", command, self._job, *how])
        else:
            subprocess.Popen(["scancel", *how, self._job])
        if not again:  # a queued job gets no signal, and is removed from the queue
            subprocess.Popen(["scancel", "--state=PENDING", self._job])


def tell_why_it_waits(
    job: str,
    ended: threading.Event,
    say: Callable[[str], None],
    *,
    queue_seconds: float = _QUEUE_SECONDS,
    running_seconds: float = _RUNNING_SECONDS,
) -> None:
    """Report the reason for which a job waits in the queue whenever it changes, also after a requeue."""
    told, seconds = "", queue_seconds
    while not ended.wait(seconds):
        why = ", ".join(_column(job, "PENDING", "%r"))
        seconds = queue_seconds if why else running_seconds
        if why not in ("", "None", told):
            times = _restarts(job)
            before = f", and has been started {counted(times, 'time')} before" if times else ""
            say(f"job {job} waits: {why}{before} (Ctrl-C takes it out of the queue)")
        told = why


def _restarts(job: str) -> int:
    found = re.search(r"\bRestarts=(\d+)", _printed("scontrol", "show", "job", "-o", job))
    return int(found[1]) if found else 0


def _column(job: str, states: str, what: str) -> list[str]:
    """Return a column of `squeue`, which has a line for each part of a job, without repetitions."""
    lines = _printed("squeue", "-h", "-j", job, "-t", states, "-o", what).splitlines()
    return [line for line in dict.fromkeys(map(str.strip, lines)) if line]


def _printed(*command: str) -> str:
    """Return the output of a command of Slurm; nothing if it does not answer."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False).stdout
    return ""


def _follow(paths: Mapping[Path, bytes], ended: threading.Event) -> None:
    """Show files as they grow until the end; several files are shown line by line."""
    places = dict.fromkeys(paths, 0)
    while True:
        is_last = ended.is_set()
        for path, prefix in paths.items():
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(places[path])
                data = file.read()
                if prefix and not is_last:
                    data = data[: data.rfind(b"\n") + 1]
                places[path] += len(data)
                data = b"".join(prefix + line for line in data.splitlines(keepends=True)) if prefix else data
                while data:
                    data = data[os.write(1, data) :]
        if is_last:
            return
        time.sleep(_FOLLOW_SECONDS)
