"""A line of every kind that the event file of a job has, written by what writes them in a job."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.simulated_steps import simulated
from tfdist.cluster import TaskId
from tfdist.cluster.job_files import steps_folder
from tfdist.jobs.agent.controller import ProcessReport as Standing
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import EventFile, RestartReporter, cause_of
from tfdist.jobs.agent.run_job import parameters_of
from tfdist.jobs.agent.shared_job import Job
from tfdist.jobs.agent.worker_group import WorkerGroup
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.supervision.evicting import Means
from tfdist.jobs.supervision.hangs import Hang, Seen
from tfdist.jobs.supervision.supervisor_state import Rules
from tfdist.monitor.phases import Activity
from tfdist.monitor.recording.row_ring import Ring
from tfdist.monitor.status import StepPosition, StepState, WorkerStatus
from tfdist.processes.worker_failure import Failure
from tfdist.waiting import Flag

JOB = "3f9ac1d2aa"
#: events that the callback `Monitor` adds, which needs Keras, with what they say
ELSEWHERE: dict[str, dict[str, Any]] = {"model": {"flops_per_step": 3e9, "peak_flops": None}}


def write_events(path: Path, memory: Path) -> None:
    """Write an event file with each kind of event.

    Args:
        path: of the file.
        memory: a folder for what the workers of the job would have recorded.
    """
    file = EventFile(str(path), JOB)
    reporter = RestartReporter(say=_unheard, file=file, max_restarts=2)
    file.write("parameters", start=0, parameters=parameters_of(LaunchConfig(target="train.py", workers=2)))
    reporter.started([41, 42])
    reporter.stepping([_seen(0, resumed=None), _seen(1, resumed=None)])
    for event, content in ELSEWHERE.items():
        file.write(event, start=0, **content)
    reporter.replaces("worker 1")
    _tell_stacks(reporter, memory)
    failed = [Failure(worker=1, time=20.0, returncode=-signal.SIGKILL, record=None)]
    reporter.failed(cause_of(failed, None, [_seen(1)], 20.0), begun=10.0, again=True)
    reporter.left([_seen(0), _seen(1)])
    reporter.start = 1
    reporter.stepping([_seen(0), _seen(1)])
    reporter.halted("resize", 2, 21.0)
    _tell_what_is_slow(file, memory)
    hang = Hang(worker=None, text="the workers hang", since=18.0)
    reporter.failed(cause_of([], hang, [_seen(0)], 20.0), begun=10.0, again=False)
    reporter.ended(1)
    file.close()


def _unheard(text: str) -> None:
    """Take the place of the terminal."""


def _seen(worker: int, *, resumed: int | None = 5) -> Seen:
    status = WorkerStatus(
        pid=40 + worker,
        activity=Activity.STEPPING,
        position=StepPosition(step=7, state=StepState.RUNNING),
        changed=9.0,
        step_seconds=0.1,
        ended=7,
        first_step_ended=21.5,
        resumed=resumed,
        source="memory",
        done=7,
        saved=5,
        leaves=False,
    )
    return Seen(worker=worker, status=status)


def _tell_stacks(reporter: RestartReporter, memory: Path) -> None:
    """Let a process that runs no Python of tfdist be asked where it stands: it is not disturbed, and says nothing."""
    job = SimpleNamespace(guard=SimpleNamespace(memory=memory), reporter=reporter, say=_unheard)
    group = SimpleNamespace(present={0: SimpleNamespace(pid=os.getpid(), is_stopped=False)})
    rules = SimpleNamespace(task=lambda index: TaskId(type="worker", index=index))
    standing = Standing(cast(Job, job), cast(Rules, rules), cast(WorkerGroup, group), starts=0)
    standing.tell(Hang(worker=None, text="the workers hang", since=18.0))


def _tell_what_is_slow(file: EventFile, memory: Path) -> None:
    folder = steps_folder(memory, 1)
    folder.mkdir()
    for worker, rows in simulated(workers=2, steps=600, late=(1, "input", 40.0)).items():
        ring = Ring(folder / f"worker-{worker}")
        ring.add(rows)
        ring.close()
    monitoring = Monitoring(memory, file, _unheard, Flag(), evicts=True)
    monitoring.begins(1)
    monitoring.look()
    monitoring.straggler(0.0, Means(workers=2, min_workers=2, has_standby=False, keeps_state=True))
    monitoring.tell()
