"""The processes of a start by task, for `tfdist stacks` and for reports of hangs."""

import contextlib
import json

from tfdist.cluster.job_files import processes_file, stacks_file
from tfdist.jobs.agent.shared_job import Job
from tfdist.jobs.agent.worker_group import WorkerGroup
from tfdist.jobs.supervision.hangs import Hang
from tfdist.jobs.supervision.supervisor_state import Rules
from tfdist.monitor.stacks.frames import apart, lines
from tfdist.monitor.stacks.stack_requests import Target, ask

# before those that hang are killed, so that it delays a restart by little; one that is stopped is not waited for
_SECONDS = 1.0
_MOST_FRAMES, _MOST_PROCESSES = 6, 8


class Standing:
    """Knows the processes of one start on this host."""

    def __init__(self, job: Job, rules: Rules, group: WorkerGroup, *, starts: int) -> None:
        self._job = job
        self._rules = rules
        self._group = group
        self._starts = starts
        self._told: set[tuple[int | None, float]] = set()

    def targets(self) -> tuple[Target, ...]:
        """Return those that run now, and where each writes its stacks."""
        memory = self._job.guard.memory
        tasks = [(self._rules.task(index), handle) for index, handle in sorted(self._group.present.items())]
        return tuple(
            Target(name=str(task), pid=handle.pid, file=stacks_file(memory, self._starts, task))
            for task, handle in tasks
        )

    def write(self) -> None:
        """Say who is which, for who looks from outside."""
        path = processes_file(self._job.guard.memory)
        temporary = path.with_name(f"{path.name}.new")
        made = [{"task": one.name, "pid": one.pid, "file": str(one.file)} for one in self.targets()]
        with contextlib.suppress(OSError):  # memory is full: `tfdist stacks` finds nothing then
            temporary.write_text(json.dumps(made), encoding="utf-8")
            temporary.replace(path)

    def tell(self, hang: Hang) -> None:
        """Tell, once for a hang, where all stand; who was stopped (SIGSTOP) is known, and what all others wait for."""
        stopped = hang.worker is not None and self._group.present[hang.worker].is_stopped
        if stopped or (hang.worker, hang.since) in self._told:
            return
        self._told.add((hang.worker, hang.since))
        found = ask(self.targets(), seconds=_SECONDS, spies=False)
        different = apart({one.name: one.waits for one in found})
        shown = [line for one in found[:_MOST_PROCESSES] for line in lines(one, most=_MOST_FRAMES)]
        left = [f"and {len(found) - _MOST_PROCESSES} more"] if len(found) > _MOST_PROCESSES else []
        text = ["where the processes stand", *([different] if different else []), *shown, *left]
        self._job.say("\n  ".join(text))
        self._job.reporter.file.write(
            "stacks", start=self._starts, text=different or hang.text, processes=[one.as_json() for one in found]
        )
