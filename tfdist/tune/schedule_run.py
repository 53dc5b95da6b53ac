"""A real step by the schedule of a pipeline, whose timeline is compared with the schedule's own."""

from tfdist.errors import TfdistError
from tfdist.jobs.placement.worker_environment import WorkerSession
from tfdist.planner.schedules import Schedule, Timeline, Work
from tfdist.planner.schedules.schedule_timeline import Slot
from tfdist.processes.pool.worker_pool import WorkerPool, failures

#: a process loads TensorFlow and traces a step; the steps come on top
_START_SECONDS = 300.0


def measured(
    schedule: Schedule, *, forward_seconds: float, backward: float, pool: WorkerPool | None = None
) -> Timeline:
    """Run a step, and return its timeline; the unit is a forward pass, the origin the first one.

    Each stage is a process of this host, so all read one clock. Layers sleep, so stages do not compete for the
    processor.
    """
    if pool is None:
        with WorkerSession("pipeline", workers=schedule.stages).pool as own:
            return measured(schedule, forward_seconds=forward_seconds, backward=backward, pool=own)
    arguments = {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "forward": forward_seconds,
        "backward": backward * forward_seconds,
    }
    slept = 2 * forward_seconds * (1 + backward) * schedule.chunks * (schedule.microbatches + schedule.stages)
    deadline, unit = _START_SECONDS + 3 * slept, forward_seconds
    replies = pool.call("tfdist.tune.sleeping_layers:step", arguments, timeout_seconds=deadline)
    if failed := failures(replies):
        first = failed[0]
        raise TfdistError(f"the step was not run: stage {first.worker} {first.status}: {first.message}")
    notes = [(reply.worker, *note) for reply in replies for note in reply.value]
    start = min(begin for *_, begin, _ in notes)
    slots = [
        Slot(stage, Work(kind, microbatch, part // schedule.stages), (begin - start) / unit, (end - start) / unit)
        for stage, kind, microbatch, part, begin, end in notes
    ]
    return Timeline(schedule, tuple(sorted(slots, key=lambda slot: (slot.begin, slot.stage))))
