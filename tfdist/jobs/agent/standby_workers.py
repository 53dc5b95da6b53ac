"""A second set of workers, which has run the script up to its first step and replaces workers that failed.

The cost of a restart (strategy, model, connections) is then paid in advance. The price is memory, and that the script
runs up to `fit` beside the job. Standby workers are forked like restarted ones, and wait in `StatusReporter.stand_by`.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.errors import TfdistError
from tfdist.jobs.agent.worker_group import Events, StatusChannel, WorkerGroup, started
from tfdist.jobs.output.screen import Output
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.supervision.supervisor_state import Event
from tfdist.monitor.phases import Activity


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Workers in reserve. `held` closes their channel and their processes."""

    specs: tuple[WorkerSpec, ...]
    channel: StatusChannel
    group: WorkerGroup
    held: contextlib.ExitStack


class Standby:
    """Keeps a reserve while asked to."""

    def __init__(self, placement: Placement, out: Output, factory: Factory, *, verbose: bool) -> None:
        self._placement = placement
        self._out = out
        self._factory = factory
        self._verbose = verbose
        self._reserve: Reserve | None = None
        self._events = _Relay()
        self._tried = False

    def tend(self, workers: int, plan: Callable[[], tuple[Sequence[WorkerSpec], StatusChannel]]) -> None:
        """Start the reserve once; end it if one of its workers has ended.

        A script that ends before its first step would do so again, so there is no new reserve until workers step anew.
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
        """True if there will be a reserve but is none yet; asked only if one is wanted."""
        if self._reserve is None:
            return not self._tried
        return not self._events.kept and not self.is_ready

    @property
    def is_ready(self) -> bool:
        """True if all of the reserve waits to take over."""
        if self._reserve is None or self._events.kept:
            return False
        channel, count = self._reserve.channel, len(self._reserve.specs)
        return all(channel.read(worker).activity is Activity.RESERVE for worker in range(count))

    def take(self, workers: int) -> Reserve | None:
        """Hand the reserve over to the caller, if it has this many live workers."""
        self._tried = False
        reserve = self._reserve
        if reserve is None or self._events.kept or reserve.group.ended() or len(reserve.specs) != workers:
            self.close()
            return None
        self._reserve = None
        return reserve

    def admit(self, reserve: Reserve, events: Events) -> None:
        """Let the reserve take part: its ends become events, and its output is shown."""
        self._events.connect(events)
        self._events = _Relay()
        if reserve.group.pump is not None:
            reserve.group.pump.release()
        reserve.channel.take_over()

    def close(self) -> None:
        """End the reserve; its output is not shown."""
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
    """Keeps events until it is connected, then forwards them."""

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
