"""The trial of a batch in separate processes: start the job, wait for its end, judge the result."""

import os
import re
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.jobs.process.job_command import run_to_end
from tfdist.monitor.stopwatch import Measurement, Request, read
from tfdist.tune.batch_search import Outcome, Tried
from tfdist.validation import counted
from tfdist.variables import BATCH_SIZE

# messages of TensorFlow, CUDA, C++ and Python when memory runs out
_NO_MEMORY = re.compile(
    r"OOM when allocating|ResourceExhaustedError|RESOURCE_EXHAUSTED|ResourceExhausted|CUDA_ERROR_OUT_OF_MEMORY"
    r"|failed to allocate memory|std::bad_alloc|MemoryError|Cannot allocate memory|out of memory"
    r"|pthread_create\(\) failed",  # no room for its stack
    re.IGNORECASE,
)
_KILLED = 128 + signal.SIGKILL
_GRACE_SECONDS = 15.0
_SHOWN_LINES, _LINE_LENGTH, _READ_BYTES = 15, 160, 200_000


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job to try batches with."""

    run: tuple[str, ...] = ()
    script: tuple[str, ...]
    argument: str | None = None  # the script's option for the batch; None: the script calls `tfdist.tune.batch_size`
    warm_up: int = 3
    steps: int = 20
    # the limit on data (heap, stacks, private memory) of each process in bytes, or None
    memory_limit: int | None = None
    timeout_seconds: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of the trial of a batch."""

    batch: int
    outcome: Outcome
    text: str = ""  # the reason why the batch does not fit
    examples: int = 0  # the number of examples in a step over all replicas
    replicas: int = 1
    speed: float = 0.0  # the median over blocks of steps, in examples per second
    memory: int = 0  # the largest resident set of a worker's process, in bytes
    device_memory: int = 0  # the largest GPU memory of a worker, in bytes

    @property
    def tried(self) -> Tried:
        return Tried(batch=self.batch, outcome=self.outcome, speed=self.speed)

    @property
    def per_replica(self) -> int:
        """The number of examples in a step on the replica that has the most."""
        return -(-self.examples // self.replicas)


def judged(batch: int, code: int | None, output: str, found: Sequence[Measurement], job: Job) -> Trial:
    chief = found[0] if found else Measurement()
    if code == 0 and chief.is_complete:
        sizes = {"examples": chief.examples or batch, "replicas": chief.replicas}
        memory = {"memory": max(one.memory for one in found), "device_memory": max(one.device_memory for one in found)}
        outcome, text = _filled(batch, chief)
        speed = statistics.median((n or batch) / seconds for n, seconds in chief.blocks)
        return Trial(batch=batch, outcome=outcome, text=text, speed=speed, **sizes, **memory)
    if code == _KILLED:
        text = "killed by SIGKILL, as the kernel does without memory"
        return Trial(batch=batch, outcome=Outcome.TOO_LARGE, text=text)
    line = next((line.strip() for line in output.splitlines() if _NO_MEMORY.search(line)), None)
    if code not in (0, None) and line is not None:
        return Trial(batch=batch, outcome=Outcome.TOO_LARGE, text=line[:_LINE_LENGTH])
    if code == 0 and chief.steps:  # it was not memory that ended it: a larger batch has fewer steps still
        wanted = job.warm_up + job.steps
        text = f"the script trained {chief.steps} steps, and {wanted} are needed: let it train longer, or --steps fewer"
        return Trial(batch=batch, outcome=Outcome.SHORT, text=text)
    if code == 0:
        text = "the script ended without a step of training in a scope of tfdist; only those are seen"
    else:
        how = f"not done after {job.timeout_seconds:g} s" if code is None else f"ended with code {code}"
        text = "\n".join([how, *output.rstrip().splitlines()[-_SHOWN_LINES:]])
    return Trial(batch=batch, outcome=Outcome.FAILED, text=text)


def _filled(batch: int, chief: Measurement) -> tuple[Outcome, str]:
    """Return the outcome and its reason: whether steps had the requested batch, per replica or globally."""
    seen = chief.examples
    if seen in (0, batch, batch * chief.replicas):
        return Outcome.FITS, ""
    if seen < batch * chief.replicas:
        return Outcome.SHORT, f"no step had more than {seen:,} examples: the data have no more"
    return Outcome.FAILED, (
        f"a step had {seen:,} examples on {counted(chief.replicas, 'replica')}: the script does not train with the "
        "batch under trial. Let it call tfdist.tune.batch_size(default), or name its argument with --argument"
    )


def attempt(batch: int, job: Job) -> Trial:
    """Run the job with a batch; the job has ended completely when this returns."""
    with tempfile.TemporaryDirectory(prefix="tfdist-tune-", ignore_cleanup_errors=True) as folder:
        request = Request(folder=folder, warm_up=job.warm_up, steps=job.steps)
        environment = {**os.environ, BATCH_SIZE.name: str(batch), **request.to_environment()}
        given = [] if job.argument is None else [job.argument, str(batch)]
        command = [sys.executable, "-m", "tfdist", "run", *job.run, *job.script, *given]
        log = Path(folder, "output")
        with open(log, "wb") as output:
            code = run_to_end(
                command,
                environment,
                output.fileno(),
                seconds=job.timeout_seconds,
                grace_seconds=_GRACE_SECONDS,
                memory_limit=job.memory_limit,
            )
        with open(log, "rb") as output:
            output.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = output.read().decode(errors="replace")
        return judged(batch, code, text, read(folder), job)
