"""A job for Slurm's queue: the batch script, and a submission that is followed to its end.

The script runs the same `tfdist run` on the first node of the allocation, which reaches the others by srun. Slurm's own
vocabulary stays Slurm's: `--sbatch` hands over options as they are.
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

from tfdist.errors import ConfigError, TfdistError
from tfdist.variables import SLURM_REQUEUE
from tfdist.waiting import handled, wait_heeding_signals

_FOLLOW_SECONDS = 0.2
_QUEUE_SECONDS = 2.0  # from one question why a job waits to the next
_RUNNING_SECONDS = 30.0  # to the next where it runs: Slurm may take it back into the queue
_ASK_SECONDS = 30.0
_LOG, _LOG_OF_TASK = "tfdist-%j.log", "tfdist-%A_%a.log"
_ENDS = {  # states of Slurm's that are no exit code of the job's
    "CANCELLED": "was cancelled, by somebody else",
    "TIMEOUT": "was ended by Slurm: its time was up",
    "PREEMPTED": "was ended by Slurm, to make room for another one (--sbatch --requeue has it start again)",
    "NODE_FAIL": "was ended by Slurm: a node has failed (--sbatch --no-kill lets it go on)",
    "OUT_OF_MEMORY": "was ended by Slurm: it took more memory than it was given (--memory-per-worker)",
    "DEADLINE": "was ended by Slurm: its deadline was over",
}
MOST_TASKS = 1000  # of an array: what Slurm takes unless it is told otherwise
#: options of `tfdist run` with a value, for the submission alone: Slurm has given what they ask for when the job
#: begins; which GPUs a worker has is decided there
OF_THE_SUBMISSION = ("--sbatch", "--sbatch-servers", "--search", "--cpus-per-worker", "--memory-per-worker")


def resources(*, cpus: float | None = None, gpus: float | None = None, memory: int | None = None) -> tuple[str, ...]:
    """Return what each task needs, as options of sbatch.

    Slurm has no memory of a task: it is asked for by CPU, rounded up to MiB.

    Example:
        >>> resources(cpus=4, gpus=1, memory=10 << 30)
        ('--cpus-per-task=4', '--mem-per-cpu=2560M', '--gpus-per-task=1')
    """
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
    of_each: Sequence[str] = (),
    options: str = "",
    servers: int = 0,
    for_servers: str | None = None,
    searched: Sequence[Sequence[str]] = (),
) -> str:
    """Return the batch script.

    Example:
        >>> print(script(["--engine", "slurm", "t.py"], name="t", processes=2, folder="/d", python="/p"), end="")
        #!/bin/bash
        #SBATCH --job-name=t
        #SBATCH --ntasks=2
        #SBATCH --chdir=/d
        #SBATCH --output=tfdist-%j.log
        #SBATCH --open-mode=append
        #SBATCH --signal=B:TERM@60
        exec /p -m tfdist run --engine slurm t.py
    """
    every = (f"--ntasks={processes}", *of_each)
    first = (f"--ntasks={1 + servers}",)
    own = (
        f"--job-name={re.sub(r'[^A-Za-z0-9_.-]', '_', name)}",
        *(first if for_servers is not None else every),
        f"--chdir={shlex.quote(folder)}",
        *((f"--array=0-{len(searched) - 1}",) if searched else ()),
        f"--output={_LOG_OF_TASK if searched else _LOG}",
        "--open-mode=append",  # of a job that is requeued nothing is lost
        "--signal=B:TERM@60",  # all stop before the same step and save, a minute before the end
    )
    lines = [f"#SBATCH {option}" for option in (*own, *_options(options), *_options(for_servers or ""))]
    if for_servers is not None:
        second = (f"--ntasks={processes - 1 - servers}", *of_each, *_options(options))
        lines += ["#SBATCH hetjob", *(f"#SBATCH {option}" for option in second)]
    cases = [f"{number}) set -- {shlex.join(more)};;" for number, more in enumerate(searched)]
    choice = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"] if searched else []
    again = [f"export {SLURM_REQUEUE.name}=1"] if "--requeue" in shlex.split(options) else []
    command = shlex.join([python, "-m", "tfdist", "run", *arguments]) + (' "$@"' if searched else "")
    return "\n".join(["#!/bin/bash", *lines, *choice, *again, f"exec {command}", ""])


def run_in_allocation(
    launch: Callable[[], int], environ: Mapping[str, str] = os.environ, *, say: Callable[[str], None]
) -> int:
    """Run a job in an allocation; where it had to stop, and is to start again (`--requeue`), put it into the queue.

    Slurm does that with a job that it has to kill. One that has saved and ended before is over, as far as Slurm knows.
    """
    code = launch()
    if code == 128 + signal.SIGTERM and SLURM_REQUEUE.read(environ):
        job = environ.get("SLURM_JOB_ID", "")
        try:
            done = subprocess.run(
                ["scontrol", "requeue", job], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
            )
            error = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as failure:
            error = str(failure)
        say(f"job {job} is not started again: {error}" if error else f"job {job} is in the queue again")
    return code


def searches(asked: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the arguments of each job of a search, which tries every value with every other.

    Example:
        >>> searches(["--rate=0.1,0.01", "--layers=2"])
        (('--rate=0.1', '--layers=2'), ('--rate=0.01', '--layers=2'))
        >>> searches([])
        ()
    """
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


def _options(text: str) -> list[str]:
    return [shlex.quote(word) for word in shlex.split(text)]


def submit(text: str, *, say: Callable[[str], None], searched: Sequence[Sequence[str]] = ()) -> int:
    """Submit a batch script, show what the job writes, and wait for its end; return its exit code.

    Of an array it is the greatest one of its jobs.

    Ctrl-C and SIGTERM ask the job to end, which saves first; again, they cancel it.
    """
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
        process.stdin.write(text)
        process.stdin.close()
        job = process.stdout.readline().strip().partition(";")[0]
        if not job:
            raise TfdistError(f"sbatch has not taken the job (exit code {process.wait()}); it says why above.")
        say(f"job {job} is in the queue of Slurm")
        for number, more in enumerate(searched):
            say(f"job {job}_{number} has {shlex.join(more)}")
        asking.begin(job)
        return _followed(process, job, len(searched), asking, say)


def _followed(
    process: "subprocess.Popen[str]", job: str, tasks: int, asking: "_Asking", say: Callable[[str], None]
) -> int:
    """Show what a job writes until `sbatch` has ended, and return its exit code; without tasks it is no array."""
    ended = threading.Event()
    logs = {Path(_LOG.replace("%j", job)): b""}
    if tasks:
        of_array = _LOG_OF_TASK.replace("%A", job)
        logs = {Path(of_array.replace("%a", str(at))): f"[{job}_{at}] ".encode() for at in range(tasks)}
    followers = [
        threading.Thread(target=_follow, args=(logs, ended), daemon=True),
        threading.Thread(target=tell_why_it_waits, args=(job, ended, say), daemon=True),
    ]
    for follower in followers:
        follower.start()
    try:
        code = wait_heeding_signals(process)
        _tell_how_it_ended(job, say, is_asked=asking.times > 0)
        return code
    finally:
        ended.set()
        for follower in followers:
            follower.join()


class _Asking:
    """Asks Slurm to end a job at signals to this process: first so that it saves, then at once.

    Attributes:
        times: how many signals have come.
    """

    def __init__(self, *, requeues: bool) -> None:
        self.times = 0
        self._told = 0  # of these, to Slurm
        self._requeues = requeues
        self._job = ""

    def begin(self, job: str) -> None:
        """Take the number of the job; a signal that came before Slurm had told it counts now."""
        self._job = job
        self._ask_as_often()

    def heed(self, _number: int, _frame: object) -> None:
        """Handle a signal."""
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
        if not again:  # one that waits in the queue gets no signal, and is taken out of it
            subprocess.Popen(["scancel", "--state=PENDING", self._job])


def tell_why_it_waits(
    job: str,
    ended: threading.Event,
    say: Callable[[str], None],
    *,
    queue_seconds: float = _QUEUE_SECONDS,
    running_seconds: float = _RUNNING_SECONDS,
) -> None:
    """Report why a job waits in the queue whenever the reason changes, also after Slurm requeued it."""
    told, seconds = "", queue_seconds
    while not ended.wait(seconds):
        why = ", ".join(_column(job, "PENDING", "%r"))
        seconds = queue_seconds if why else running_seconds
        if why not in ("", "None", told):
            times = _restarts(job)
            before = f", and has been started {times} time{'s' * (times > 1)} before" if times else ""
            say(f"job {job} waits: {why}{before} (Ctrl-C takes it out of the queue)")
        told = why


def _restarts(job: str) -> int:
    """Return how often Slurm has put a job into the queue again."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["scontrol", "show", "job", "-o", job]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
        if found := re.search(r"\bRestarts=(\d+)", done.stdout):
            return int(found[1])
    return 0


def _tell_how_it_ended(job: str, say: Callable[[str], None], *, is_asked: bool) -> None:
    """Say what has ended a job where that was Slurm, or somebody else than who waits for it here."""
    for state in _column(job, "all", "%T"):
        why = _ENDS.get(state)
        if why is not None and not (is_asked and state == "CANCELLED"):
            say(f"job {job} {why}")


def _column(job: str, states: str, what: str) -> list[str]:
    """Return what `squeue` says of a job, without what it says twice: it has a line for each part of one."""
    command = ["squeue", "-h", "-j", job, "-t", states, "-o", what]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
        return [line for line in dict.fromkeys(map(str.strip, done.stdout.splitlines())) if line]
    return []


def _follow(paths: Mapping[Path, bytes], ended: threading.Event) -> None:
    """Show files as they grow, until nothing is added after the end; where there are several, line by line."""
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
