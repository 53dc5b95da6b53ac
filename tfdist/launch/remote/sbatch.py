"""A job for Slurm's queue: the batch script, and a submission that is followed to its end.

The script runs the same `tfdist run` on the first node of the allocation, which reaches the others by srun. Slurm's own
vocabulary stays Slurm's: `--sbatch` hands over options as they are.
"""

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.errors import ConfigError, TfdistError

_FOLLOW_SECONDS = 0.2
_QUEUE_SECONDS = 2.0  # from one question why a job waits to the next
_ASK_SECONDS = 30.0
_LOG = "tfdist-%j.log"
#: options of `tfdist run` with a value, for the submission alone: Slurm has given what they ask for when the job
#: begins; which GPUs a worker has is decided there
OF_THE_SUBMISSION = ("--sbatch", "--cpus-per-worker", "--memory-per-worker")


def resources(*, cpus: float | None = None, gpus: float | None = None, memory: int | None = None) -> tuple[str, ...]:
    """Return what each task needs, as options of sbatch.

    Slurm has no memory of a task: it is asked for by CPU, rounded up to MiB.

    Args:
        cpus: of each; None for one.
        gpus: of each; None for none.
        memory: of each, in bytes; None for what Slurm gives.
    Raises:
        ConfigError: parts of CPUs or GPUs.

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
) -> str:
    """Return the batch script.

    Args:
        arguments: of `tfdist run`.
        name: of the job.
        processes: how many tasks it has.
        folder: in which it runs.
        python: the interpreter.
        of_each: options of sbatch for what each task needs.
        options: more of sbatch's, which come last and so win.

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
    own = (
        f"--job-name={re.sub(r'[^A-Za-z0-9_.-]', '_', name)}",
        f"--ntasks={processes}",
        *of_each,
        f"--chdir={shlex.quote(folder)}",
        f"--output={_LOG}",
        "--open-mode=append",  # of a job that is requeued nothing is lost
        "--signal=B:TERM@60",  # all stop before the same step and save, a minute before the end
    )
    lines = [f"#SBATCH {option}" for option in (*own, *_options(options))]
    return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join([python, '-m', 'tfdist', 'run', *arguments])}", ""])


def _options(text: str) -> list[str]:
    return [shlex.quote(word) for word in shlex.split(text)]


def submit(text: str, *, say: Callable[[str], None]) -> int:
    """Submit a batch script, show what the job writes, and wait for its end; return its exit code.

    Ctrl-C and SIGTERM ask the job to end, which saves first; again, they cancel it.

    Args:
        text: of the script.
        say: tells the user.
    Raises:
        TfdistError: Slurm does not take it.
    """
    process = subprocess.Popen(
        ["sbatch", "--parsable", "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text)
    process.stdin.close()
    job = process.stdout.readline().strip().partition(";")[0]
    if not job:
        raise TfdistError(f"sbatch has not taken the job (exit code {process.wait()}); it says why above.")
    say(f"job {job} is in the queue of Slurm")
    asked = [0]

    def ask(number: int, _frame: object) -> None:
        asked[0] += 1
        how = ("--batch", "--signal=TERM") if asked[0] == 1 else ()
        subprocess.Popen(["scancel", *how, job])
        if asked[0] == 1:  # one that waits in the queue gets no signal, and is taken out of it
            subprocess.Popen(["scancel", "--state=PENDING", job])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ended = threading.Event()
    log = Path(_LOG.replace("%j", job))
    followers = [
        threading.Thread(target=_follow, args=(log, ended), daemon=True),
        threading.Thread(target=_tell_why_it_waits, args=(job, log, ended, say), daemon=True),
    ]
    for follower in followers:
        follower.start()
    try:
        return process.wait()
    finally:
        ended.set()
        for follower in followers:
            follower.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_why_it_waits(job: str, log: Path, ended: threading.Event, say: Callable[[str], None]) -> None:
    """Say why the job waits in the queue, each time that it is something else, until it writes."""
    told = ""
    while not log.exists() and not ended.wait(_QUEUE_SECONDS):
        command = ["squeue", "-h", "-j", job, "-t", "PENDING", "-o", "%r"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
            why = done.stdout.strip()
            if why not in ("", "None", told):
                told = why
                say(f"job {job} waits: {why} (Ctrl-C takes it out of the queue)")


def _follow(path: Path, ended: threading.Event) -> None:
    """Show a file as it grows, until nothing is added after the end."""
    place = 0
    while True:
        is_last = ended.is_set()
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(place)
            data = file.read()
            place += len(data)
            while data:
                data = data[os.write(1, data) :]
        if is_last:
            return
        time.sleep(_FOLLOW_SECONDS)
