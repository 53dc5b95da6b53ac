"""A second set of workers, which has run the script up to its first step and takes the place of one that failed.

What a restart costs is then paid before it is needed: the strategy, the model, the connections between the workers.
The price is their memory, and that the script runs up to `fit` beside the job. They are forked like all workers that
follow on others, and wait in `Reporter.stand_by`.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.errors import TfdistError
from tfdist.launch.generation import Generation, started
from tfdist.launch.nursery import Nursery
from tfdist.launch.output import Output
from tfdist.launch.plan import WorkerSpec
from tfdist.launch.processes import Events
from tfdist.launch.progress import Page
from tfdist.launch.resources import Guard
from tfdist.launch.supervise import Event


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Workers that wait, or will.

    Attributes:
        specs: what was started.
        page: which they report to.
        generation: their processes.
        held: closes both.
    """

    specs: tuple[WorkerSpec, ...]
    page: Page
    generation: Generation
    held: contextlib.ExitStack


class Standby:
    """Keeps a reserve, while it is asked to.

    Args:
        guard: of the job.
        out: where the output of the workers goes, once they take part.
        nursery: where they come from.
        verbose: whether to tell what is started.
    """

    def __init__(self, guard: Guard, out: Output, nursery: Nursery, *, verbose: bool) -> None:
        self._guard = guard
        self._out = out
        self._nursery = nursery
        self._verbose = verbose
        self._reserve: Reserve | None = None
        self._events = _Relay()
        self._tried = False

    def tend(self, workers: int, plan: Callable[[], tuple[Sequence[WorkerSpec], Page]]) -> None:
        """Start the reserve, unless it has been; end it if one of its workers has ended.

        A script that ends before its first step would do so again: then there is none until workers step anew.

        Args:
            workers: how many it must have.
            plan: returns what to start, and a new page for it.
        """
        if self._reserve is not None:
            if self._events.kept or len(self._reserve.specs) != workers:
                self.close()
        elif not self._tried and self._nursery.waiting >= workers:
            self._tried = True
            self._start(*plan())

    def take(self, workers: int) -> Reserve | None:
        """Return the reserve, if it has so many workers and all live; it is the caller's from now on."""
        self._tried = False
        reserve = self._reserve
        if reserve is None or self._events.kept or len(reserve.specs) != workers:
            self.close()
            return None
        self._reserve = None
        return reserve

    def admit(self, reserve: Reserve, events: Events) -> None:
        """Let a reserve that was taken take part: its ends become events, its output is shown, and it goes on."""
        self._events.connect(events)
        self._events = _Relay()
        if reserve.generation.pump is not None:
            reserve.generation.pump.release()
        reserve.page.take_over()

    def close(self) -> None:
        """End the reserve; nothing that it wrote is shown."""
        if self._reserve is not None:
            self._reserve.held.close()
            for spec in self._reserve.specs:
                spec.error_file.unlink(missing_ok=True)
        self._reserve, self._events = None, _Relay()

    def _start(self, specs: Sequence[WorkerSpec], page: Page) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(page.close)
            try:
                generation = stack.enter_context(
                    started(
                        specs,
                        self._guard,
                        self._out,
                        self._events,
                        verbose=self._verbose,
                        piped=True,
                        starter=self._nursery.fork,  # another process would count as left over from those who failed
                        held=True,
                    )
                )
            except TfdistError:  # the job goes on without a reserve
                self._events = _Relay()
                return
            self._reserve = Reserve(specs=tuple(specs), page=page, generation=generation, held=stack.pop_all())


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
