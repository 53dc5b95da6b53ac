"""A second set of workers, which has run the script up to its first step and takes the place of one that failed.

What a restart costs is then paid before it is needed: the strategy, the model, the connections between the workers.
The price is their memory, and that the script runs up to `fit` beside the job. They are forked like all workers that
follow on others, and wait in `StatusReporter.stand_by`.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.errors import TfdistError
from tfdist.jobs.agent.status_channel import StatusChannel
from tfdist.jobs.agent.worker_group import Events, WorkerGroup, started
from tfdist.jobs.output.screen import Output
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.supervision.supervisor_state import Event
from tfdist.monitor.phases import Activity


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Workers that wait, or will.

    Attributes:
        specs: what was started.
        channel: to them.
        group: their processes.
        held: closes both.
    """

    specs: tuple[WorkerSpec, ...]
    channel: StatusChannel
    group: WorkerGroup
    held: contextlib.ExitStack


class Standby:
    """Keeps a reserve, while it is asked to."""

    def __init__(self, placement: Placement, out: Output, factory: Factory, *, verbose: bool) -> None:
        self._placement = placement
        self._out = out
        self._factory = factory
        self._verbose = verbose
        self._reserve: Reserve | None = None
        self._events = _Relay()
        self._tried = False

    def tend(self, workers: int, plan: Callable[[], tuple[Sequence[WorkerSpec], StatusChannel]]) -> None:
        """Start the reserve, unless it has been; end it if one of its workers has ended.

        A script that ends before its first step would do so again: then there is none until workers step anew.
        """
        if self._reserve is not None:
            if self._events.kept or len(self._reserve.specs) != workers:
                self.close()
        elif not self._tried and self._factory.waiting >= workers:
            self._tried = True
            try:
                planned = plan()
            except TfdistError:  # a host has just been lost
                return
            self._start(*planned)

    @property
    def is_starting(self) -> bool:
        """Whether there will be a reserve, and is not yet; asked only where one is wanted."""
        if self._reserve is None:
            return not self._tried
        return not self._events.kept and not self.is_ready

    @property
    def is_ready(self) -> bool:
        """Whether there is a reserve, and all of it waits to take over."""
        if self._reserve is None or self._events.kept:
            return False
        channel, count = self._reserve.channel, len(self._reserve.specs)
        return all(channel.read(worker).activity is Activity.RESERVE for worker in range(count))

    def take(self, workers: int) -> Reserve | None:
        """Return the reserve, if it has so many workers and all live; it is the caller's from now on."""
        self._tried = False
        reserve = self._reserve
        if reserve is None or self._events.kept or reserve.group.ended() or len(reserve.specs) != workers:
            self.close()
            return None
        self._reserve = None
        return reserve

    def admit(self, reserve: Reserve, events: Events) -> None:
        """Let a reserve that was taken take part: its ends become events, its output is shown, and it goes on."""
        self._events.connect(events)
        self._events = _Relay()
        if reserve.group.pump is not None:
            reserve.group.pump.release()
        reserve.channel.take_over()

    def close(self) -> None:
        """End the reserve; nothing that it wrote is shown."""
        if self._reserve is not None:
            self._reserve.held.close()
            for spec in self._reserve.specs:
                spec.error_file.unlink(missing_ok=True)
        self._reserve, self._events = None, _Relay()

    def _start(self, specs: Sequence[WorkerSpec], channel: StatusChannel) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(channel.close)
            try:
                group = stack.enter_context(
                    started(specs, self._placement, self._out, self._events, verbose=self._verbose, held=True)
                )
            except TfdistError:  # the job goes on without a reserve
                self._events = _Relay()
                return
            self._reserve = Reserve(specs=tuple(specs), channel=channel, group=group, held=stack.pop_all())


class _Relay:
    """Keeps events until it is connected, and passes them on afterwards."""

    def __init__(self) -> None:
        self.kept: list[Event] = []
        self._to: Events | None = None
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if self._to is None:
                self.kept.append(event)
            else:
                self._to.put(event)

    def connect(self, to: Events) -> None:
        with self._lock:
            self._to = to
            for event in self.kept:
                to.put(event)
