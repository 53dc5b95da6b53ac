"""The choice of the interval between meetings, for `every="auto"`, from measurements in the first steps."""

import logging
import time
from dataclasses import replace

import keras

from tfdist.collectives.link_measuring import measured_link
from tfdist.collectives.workers.worker_processes import Workers, as_float, as_integer
from tfdist.gradients.outer.meeting_schedules import DiLoCo, Synchronization
from tfdist.gradients.outer.meetings import Meeting
from tfdist.gradients.outer.trial_steps import Trial
from tfdist.planner.meeting_interval import Meetings, smallest_interval, travel_seconds

_log = logging.getLogger("tfdist")
_MANY_BYTES = 1 << 20  # that show the rate of the network
_FEWEST = 2  # one step between two meetings may mean to reduce gradients, for which slots must be equal


class IntervalChoice:
    """The choice of ``every``: times steps of one worker, and chooses together with the others; backups remember it."""

    def __init__(self, asked: Synchronization, meeting: Meeting, workers: Workers) -> None:
        self._asked = asked
        self._meeting = meeting
        self._workers = workers
        self._every: keras.Variable | None = None  # 0 before it is chosen
        self._began = 0.0
        self._steps, self._seconds = 0, 0.0

    def make(self) -> None:
        self._every = keras.Variable(0, name="steps_between_meetings", dtype="int64", trainable=False)

    def measures(self, meeting: Meeting) -> None:
        self._meeting = meeting

    @property
    def memory(self) -> list[keras.Variable]:
        """The variables that backups keep, once they exist."""
        return [] if self._every is None else [self._every]

    def schedule_from(self, step: int) -> Synchronization | Trial:
        """Return the schedule of a process that begins after this number of steps."""
        every = 0 if self._every is None else int(self._every.numpy())
        return replace(self._asked, every=every) if every else Trial(asked=self._asked, begun=step)

    def step_begins(self) -> None:
        """Note the time at which a step, or several steps in one graph, begin."""
        self._began = time.perf_counter()

    def note_steps(self, steps: int) -> None:
        """Add the steps that end now to the timed ones."""
        self._meeting.wait_for_step()
        self._steps += steps
        self._seconds += time.perf_counter() - self._began

    def choose(self) -> Synchronization:
        """Return the schedule with a number for ``every``; all workers call this after the same step."""
        if self._workers.count == 1:
            return self._chosen(_FEWEST)
        link = measured_link(self._workers.collective, _MANY_BYTES)
        load = self._meeting.load()
        mine = [self._seconds / self._steps, load.stepping_seconds]
        every = self._workers.gather([as_integer(one) for one in mine])
        slowest, stepping = (max(map(as_float, every[:, place].tolist())) for place in range(len(mine)))
        outer = self._asked if isinstance(self._asked, DiLoCo) else None
        meetings = Meetings(
            step_seconds=slowest,
            travel_seconds=travel_seconds(link, load.wire_bytes, self._workers.count),
            computing_seconds=load.codec_seconds + stepping,
            fragments=1 if outer is None else outer.fragments,
            delay=0 if outer is None else outer.delay,
        )
        chosen = self._chosen(max(_FEWEST, smallest_interval(meetings)))
        if self._workers.is_chief:
            _log.warning(
                "synchronization: %r. A step takes %.3g ms. At a meeting a worker sends %.3g MB, which travels for "
                "%.3g ms and takes %.3g ms of computing (measured: %.3g Mbit/s, %.2g ms).",
                chosen,
                1e3 * slowest,
                load.wire_bytes / 1e6,
                1e3 * meetings.travel_seconds,
                1e3 * meetings.computing_seconds,
                8e-6 * link.bytes_per_second,
                1e3 * link.latency_seconds,
            )
        return chosen

    def _chosen(self, every: int) -> Synchronization:
        assert self._every is not None
        self._every.assign(every)
        return replace(self._asked, every=every)
