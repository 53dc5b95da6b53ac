"""The running of trials on slots: forked from a process that has imported TensorFlow, or by `tfdist run`.

A forked trial saves the import of TensorFlow. Where a process cannot be forked, it is started anew. A forked trial that
is paused gives its slot away and keeps its process, so that it can continue without a new start.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tfdist
from tfdist.cluster.cluster_values import TaskId
from tfdist.errors import TfdistError
from tfdist.jobs.placement.local_placement import Child, LocalPlacement, started_anew
from tfdist.jobs.placement.placement_protocol import Handle
from tfdist.jobs.placement.worker_factory import forked
from tfdist.jobs.plan.job_plan import WORKER_FILE
from tfdist.jobs.plan.worker_spec import WorkerSpec, gpus_of
from tfdist.processes import forking, guardian
from tfdist.processes.fork_server import ForkServer
from tfdist.processes.job_resources import Guard
from tfdist.processes.worker_failure import how_it_ended, read_record
from tfdist.tune.search.search_history import End, Event, History
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.search_trial import BACKUP, DECLARED, ERROR, LOG, REPORTS, ReportFiles, TrialRequest
from tfdist.tune.search.trial_jobs import Slot, command_of, is_forked, launcher_of
from tfdist.tune.search.waiting_trials import Orders, has_room, least_promising
from tfdist.variables import ERROR_FILE

_LOOK_SECONDS = 0.02
_END_SECONDS = 20.0  # for a backup at the end
_JOB_END_SECONDS = 120.0  # for a launcher to end a job that saves, and to take it out of its queue
_SERVER_SECONDS = 120.0
_THREADS = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
_SHOWN_LINES, _READ_BYTES = 12, 20_000
_WAITING = 8  # processes of paused trials, for each slot
_IMPORTED = (*tfdist.PRELOADED, "tfdist.tune.search.trial_callbacks")  # before trials are forked


@dataclass
class _Running:
    handle: Handle
    slot: int
    reports: ReportFiles
    orders: Orders | None
    is_asked: bool = False

    def ask_to_end(self) -> None:
        if self.orders is not None:
            self.orders.say(0)  # in case that it pauses before it hears the signal
        self.handle.signal(signal.SIGTERM)

    def continues(self, until: int) -> bool:
        """Let the waiting process train up to so many epochs; return False if it has died."""
        if self.orders is None or self.handle.wait(0.0) is not None:
            return False
        self.reports.waits = False
        self.orders.say(until)
        return True


class TrialSlots:
    """The slots of a search, and the trials that run on them."""

    def __init__(
        self,
        settings: SearchSettings,
        folder: Path,
        slots: Sequence[Slot],
        guard: Guard,
        *,
        environment: Mapping[str, str] | None = None,
        waiting: int | None = None,
    ) -> None:
        self._settings, self._folder, self._slots, self._guard = settings, folder, slots, guard
        self._gpus = len(gpus_of(os.environ))
        threads = str(max(1, len(os.sched_getaffinity(0)) // len(slots)))
        self._is_here = launcher_of(settings) == "local"
        shares = self._is_here and not self._gpus
        own = {name: threads for name in _THREADS if name not in os.environ and shares}
        self._environment = {**own, **(environment or {})}
        self._forks = is_forked(settings)
        self._server: ForkServer | None = None
        self._placement = LocalPlacement(guard, starter=self._started)
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, _Running] = {}  # paused trials whose processes wait
        self._leaving: dict[int, _Running] = {}  # those that were asked to end
        self._most_waiting = 0 if self._gpus or not self._forks else _WAITING * len(slots)
        if waiting is not None:
            self._most_waiting = min(self._most_waiting, waiting)
        self._started_count = 0

    def folder_of(self, trial: int) -> Path:
        return trial_folder(self._folder, trial)

    def _serve(self) -> None:
        """Start the process that trials are forked from; only on Linux."""
        if self._server is None and self._forks and sys.platform == "linux":
            settings = self._settings
            place = os.getcwd() if settings.is_module else os.path.dirname(os.path.realpath(settings.target))
            environment = {**os.environ, **self._environment}
            self._server = ForkServer.start(environment, folder=place, modules=_IMPORTED, ends=forking.FAST)
            self._guard.watch(self._server.pid)

    def start(self, trial: int, history: History) -> None:
        state, settings, folder = history.trials[trial], self._settings, self.folder_of(trial)
        number = min(set(range(len(self._slots))) - {one.slot for one in self._running.values()})
        if (waiting := self._waiting.pop(trial, None)) is not None:
            waiting.slot = number
            self._running[trial] = waiting
            if waiting.continues(state.until):
                return
            self._clear(self._running.pop(trial))
        self._await_end(trial)
        self._serve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).unlink(missing_ok=True)
        for name in (DECLARED, REPORTS):  # on a disk of the network, a new file of another host is seen later
            (folder / name).touch()
        orders = self._orders(trial)
        request = TrialRequest(
            folder=str(folder),
            trial=trial,
            until=state.until,
            last=settings.epochs,
            metric=settings.metric,
            seed=settings.seed,
            values=state.values,
            draws=not settings.space,
            orders="" if orders is None else orders.path,
        )
        slot = self._slots[number]
        variables = {**self._environment, **(slot.variables or {}), ERROR_FILE.name: str(folder / ERROR)}
        spec = WorkerSpec(
            index=trial,
            task=TaskId(type="worker", index=trial),
            argv=self._command(slot),
            environment={**variables, **request.to_environment()},
            error_file=folder / ERROR,
            gpus=self._gpus_of(number),
            piped=frozenset(),
        )
        reports = ReportFiles(trial, folder, orders=request.orders)
        self._running[trial] = _Running(self._placement.start(spec), number, reports, orders)

    def _orders(self, trial: int) -> Orders | None:
        """Return a pipe for the orders of the next process, if it may wait."""
        if not self._most_waiting:
            return None
        self._started_count += 1
        with contextlib.suppress(OSError, AttributeError):  # there: the disk or the system has no pipes
            return Orders(self._guard.directory / f"orders-{trial}-{self._started_count}")
        return None

    def stop(self, trial: int) -> None:
        if (running := self._running.get(trial)) is not None:
            running.is_asked = True
            running.ask_to_end()

    def clone(self, trial: int, donor: int) -> None:
        self._leave(trial)  # it has the state before
        self._await_end(trial)
        source, target = (self.folder_of(one) / BACKUP for one in (donor, trial))
        fresh = target.with_name(f"{BACKUP}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, fresh)
        shutil.rmtree(target, ignore_errors=True)
        if fresh.is_dir():
            fresh.rename(target)

    def events(self, history: History) -> Iterator[Event]:
        time.sleep(_LOOK_SECONDS)
        for number, one in list(self._running.items()):
            code = one.handle.wait(0.0)  # first: what it has reported is whole then
            reported = history.trials[number].step
            for event in one.reports.news():
                reported = max(reported, getattr(event, "step", 0))
                yield event
            if code is not None:
                del self._running[number]
                self._clear(one)
                yield self._end(number, code, reported, one, until=history.trials[number].until)
            elif one.reports.waits:
                self._waiting[number] = self._running.pop(number)
                yield End(number, "paused")
                self._make_room(history)
        for number, one in list(self._leaving.items()):
            if one.handle.wait(0.0) is not None:
                self._clear(self._leaving.pop(number))

    def _make_room(self, history: History) -> None:
        """End the process that is least likely to continue, where too many wait."""
        if len(self._waiting) > self._most_waiting or not has_room():
            self._leave(least_promising(self._waiting, history))

    def _leave(self, trial: int) -> None:
        """Ask a waiting process to end."""
        if (one := self._waiting.pop(trial, None)) is not None:
            self._leaving[trial] = one
            one.continues(0)

    def _await_end(self, trial: int) -> None:
        if (one := self._leaving.pop(trial, None)) is not None:
            one.handle.wait(_END_SECONDS)
            self._clear(one)

    def close(self) -> None:
        """End the running trials, each of which saves its state, and the waiting ones, which have saved it."""
        for trial in list(self._waiting):
            self._leave(trial)
        left = [*self._running.values(), *self._leaving.values()]
        with contextlib.suppress(TfdistError):
            for one in self._running.values():
                one.ask_to_end()
            deadline = time.monotonic() + (_END_SECONDS if self._is_here else _JOB_END_SECONDS)
            for one in left:
                one.handle.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.ExitStack() as stack:  # an error of one leaves none of the others
            if self._server is not None:
                stack.callback(self._guard.forget, self._server.pid)
                stack.callback(self._server.close)
            for one in left:
                stack.callback(self._clear, one)
        self._running.clear()
        self._leaving.clear()

    def _clear(self, one: _Running) -> None:
        one.handle.signal(signal.SIGKILL)  # what it has started
        one.handle.close(_END_SECONDS)
        guardian.remove_listed(f"{one.handle.spec.error_file}{guardian.LISTING}")
        if one.orders is not None:
            one.orders.close()

    def _end(self, trial: int, code: int, reported: int, one: _Running, *, until: int) -> End:
        if one.is_asked and code != 0:
            return End(trial, "stopped")
        if code != 0:
            return End(trial, "died", self._cause(trial, code))
        if not reported:
            where = "" if self._is_here else f" The hosts must have {self._folder} too, on a disk that all share."
            text = (
                "It ended with code 0 and has reported nothing. Give fit the callbacks of tfdist.search.callbacks(), "
                f"or call tfdist.search.report(...).{where}"
            )
            return End(trial, "died", text)
        is_paused = until <= reported < self._settings.epochs
        return End(trial, "paused" if is_paused else "finished")

    def _cause(self, trial: int, code: int) -> str:
        folder = self.folder_of(trial)
        record = read_record(folder / ERROR)
        if record is not None:
            return f"{how_it_ended(code)}\n{record.traceback.rstrip()}"
        lines = _end_of(folder / LOG).rstrip().splitlines()[-_SHOWN_LINES:]
        return "\n".join([how_it_ended(code), *lines])

    def _command(self, slot: Slot) -> tuple[str, ...]:
        settings = self._settings
        if not self._forks:
            return (sys.executable, "-m", "tfdist", *command_of(settings, slot))
        kind = "--module" if settings.is_module else "--script"
        own = ("--parent", str(os.getpid()), kind, settings.target)
        return (sys.executable, str(WORKER_FILE), *own, *settings.arguments)

    def _gpus_of(self, slot: int) -> tuple[int, ...] | None:
        if not self._gpus or not self._is_here:
            return None
        each = self._settings.workers_per_trial * (self._settings.gpus_per_worker or 1)
        return tuple((slot * each + place) % self._gpus for place in range(min(each, self._gpus)))

    def _started(self, spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        log = os.open(spec.error_file.with_name(LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            if self._server is not None and self._is_ready(self._server):
                return forked(self._server, spec, environment, (nothing, log, log))
            return started_anew(spec, environment, (nothing, log, log))
        finally:
            os.close(log)
            os.close(nothing)

    @staticmethod
    def _is_ready(server: ForkServer) -> bool:
        deadline = time.monotonic() + _SERVER_SECONDS
        while server.process.poll() is None and time.monotonic() < deadline:
            if server.wait(0.1):
                return True
        return False


def trial_folder(search: Path, trial: int) -> Path:
    return search / "trials" / f"{trial:05}"


def forget_trials(search: Path, known: int) -> None:
    """Remove the folders of trials that are not in the journal: a kill came before their start was written."""
    for folder in sorted((search / "trials").glob("*")):
        if folder.name.isdecimal() and int(folder.name) >= known:
            shutil.rmtree(folder)


def _end_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _READ_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
