"""Deliberate faults, which TFDIST_FAULTS plans for a worker at a named point.

`FaultInjector` is an observer of the step clock. Saving and restoring call `at` where something may fail, which costs a
tenth of a microsecond without a plan. The plan is a JSON list, which `tfdist.testing.FaultPlan` and `tfdist chaos`
write:

    [{"kind": "kill", "worker": 1, "at": "step", "step": 20}]

A fault happens once, before the first restart of the job unless it names another one; "slow" stays. It adds a line of
JSON to the file TFDIST_FAULTS_LOG, as does a warning that a backup is damaged or could not be written.
"""

import contextlib
import errno
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Kind, Phase
from tfdist.variables import FAULTS, FAULTS_LOG, RESTARTS, TASKS_FILE, WORKER_INDEX

CHIEF = "chief"
EXIT_CODE = 3
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}

KINDS = {
    "kill": "SIGKILL, as the kernel sends it when memory runs out",
    "stop": "SIGSTOP: the process stands still, and its connections stay open",
    "hang": "the thread sleeps, for ever or for so many seconds; other threads go on",
    "slow": "each such point takes so many seconds more, from this step on",
    "exception": "a RuntimeError of the script",
    "exit": f"the process ends at once with code {EXIT_CODE}, and says nothing",
    "term": "SIGTERM to this worker alone, as before a machine is taken away",
    "disk-full": "the save meets a full disk",
    "corrupt": "one byte of the saved data is changed",
}
RESTARTING = frozenset({"kill", "stop", "hang", "exception", "exit", "term"})  # after these the workers start again

SAVING = ("save-begin", "save-middle", "save-commit")
POINTS = {
    "restore": "before a backup is put back",
    "tracing": "when TensorFlow traces a step of a tfdist strategy; without a strategy it is never reached",
    "step": "before each step of training, validation and prediction; the default",
    "validation": "before the validation of an epoch",
    "epoch-end": "when an epoch has ended, before its backup",
    "save-begin": "before a save",
    "save-middle": "when a part of a save is written",
    "save-commit": "when all of a save is written, before it has its name",
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault.

    Attributes:
        kind: the kind of fault, a key of KINDS.
        worker: the number of the worker to which it happens.
        task: in a job with parameter servers, the task to which it happens: "chief", "worker 1", "ps 0". When the chief
            comes to the point, it sends the signal "kill", "stop" or "term"; other kinds happen to the chief.
        at: the point at which it happens, a key of POINTS.
        step: the step at which it happens; None: when the point is first reached. At "step" and "tracing", steps are
            counted from 0 since the workers were started, in training, validation and prediction. At other points, they
            are counted since training began, across restores.
        restart: the number of restarts of the workers, for whatever reason, after which it happens; None: every time.
        seconds: the length in seconds, for "slow" and "hang".
        memory: at a point of a save, whether it happens where `tfdist run` holds the state in memory, and not where the
            backup is written.

    Raises:
        ConfigError: a value is not allowed, or the fault cannot happen at that point.

    Example:
        >>> Fault(kind="kill", worker=1, step=20).as_json()
        {'kind': 'kill', 'worker': 1, 'at': 'step', 'step': 20}
    """

    kind: str
    worker: int = 0
    task: str | None = None
    at: str = "step"
    step: int | None = None
    restart: int | None = 0
    seconds: float | None = None
    memory: bool = False

    def __post_init__(self) -> None:
        validation.one_of("kind", self.kind, KINDS)
        validation.integer("worker", self.worker, minimum=0)
        if self.task is not None:
            self._require_task()
        validation.one_of("at", self.at, POINTS)
        if self.step is not None:
            validation.integer("step", self.step, minimum=0)
        if self.restart is not None:
            validation.integer("restart", self.restart, minimum=0)
        if self.seconds is not None:
            validation.number("seconds", self.seconds, above=0)
        if self.kind == "slow" and self.seconds is None:
            text = "a fault of kind 'slow' has no seconds; say how much longer a step takes: seconds=0.1."
            raise ConfigError(text, name="seconds")
        if self.seconds is not None and self.kind not in ("slow", "hang"):
            self._refuse("seconds", f"a fault of kind {self.kind!r} has seconds; only 'slow' and 'hang' take them.")
        saving = ", ".join(SAVING)
        if self.kind in ("disk-full", "corrupt") and self.at not in SAVING:
            self._refuse(
                "at", f"a fault of kind {self.kind!r} is at {self.at!r}; it can happen only at one of {saving}."
            )
        validation.boolean("memory", self.memory)
        if self.memory and self.at not in SAVING:
            self._refuse("memory", f"a fault at {self.at!r} has memory; only those at {saving} take it.")

    def _refuse(self, name: str, text: str) -> NoReturn:
        raise ConfigError(text, name=name, received=getattr(self, name))

    def _require_task(self) -> None:
        text = validation.text("task", self.task)
        if not re.fullmatch(r"chief|(worker|ps) \d+", text):
            self._refuse("task", f'task is {text!r}; it must be "chief", or one such as "worker 1" or "ps 0".')
        if self.worker:
            self._refuse("worker", f"a fault has worker {self.worker} and task {text!r}; give it one of both.")
        if text != CHIEF and self.kind not in SIGNALS:
            self._refuse(
                "kind",
                f"a fault of kind {self.kind!r} has task {text!r}, which runs no script; {', '.join(SIGNALS)} can "
                f"happen to it, the others to task {CHIEF!r}.",
            )

    @property
    def victim(self) -> str:
        """The worker or task to which it happens, in words.

        Example:
            >>> Fault(kind="kill", worker=1).victim, Fault(kind="kill", task="ps 0").victim
            ('worker 1', 'ps 0')
        """
        return self.task or f"worker {self.worker}"

    def as_json(self) -> dict[str, Any]:
        """Return JSON for `parse`, without default values."""
        default = Fault(kind="kill")
        names = ("kind", "worker", "task", "at", "step", "restart", "seconds", "memory")
        always = ("kind", "at", "worker" if self.task is None else "task")
        return {n: getattr(self, n) for n in names if n in always or getattr(self, n) != getattr(default, n)}


def parse(text: str) -> tuple[Fault, ...]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{FAULTS.name} is {validation.shown(text)}; it must be a JSON list ({error}).",
            name=FAULTS.name,
            received=text,
        ) from error
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ConfigTypeError(
            f"{FAULTS.name} is {validation.shown(text)}; it must be a list of objects.", name=FAULTS.name, received=text
        )
    return tuple(_fault(item) for item in content)


def _fault(item: dict[str, Any]) -> Fault:
    known = Fault.__dataclass_fields__
    if unknown := sorted(item.keys() - known.keys()):
        raise ConfigError(
            f"a fault in {FAULTS.name} has {unknown[0]!r}; it may have {', '.join(known)}.",
            name=unknown[0],
            received=item[unknown[0]],
        )
    if "kind" not in item:
        raise ConfigError(f"a fault in {FAULTS.name} is {validation.shown(item)}; it must have a kind.", name="kind")
    return Fault(**item)


class Script:
    """The faults that are to happen to this worker in its present start."""

    def __init__(self, faults: tuple[Fault, ...], *, worker: int, restart: int) -> None:
        self.waiting = [f for f in faults if f.worker == worker and f.restart in (None, restart)]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Script":
        """Return the script that the launcher's variables give this process; an empty one if there is no plan."""
        plan = FAULTS.read(environ)
        return cls(parse(plan) if plan else (), worker=WORKER_INDEX.read(environ), restart=RESTARTS.read(environ))

    def due(self, point: str, step: int, *, memory: bool = False) -> list[Fault]:
        """Return the faults due now, and forget those that happen once."""
        found, left = list[Fault](), list[Fault]()
        for fault in self.waiting:
            is_due = fault.at == point and fault.memory == memory and _matches(fault, step)
            if is_due and (fault.step is not None or not found):  # of those that may come at any step, one at a time
                found.append(fault)
                if fault.kind != "slow":
                    continue
            left.append(fault)
        self.waiting = left
        return found


def _matches(fault: Fault, step: int) -> bool:
    if fault.kind == "slow":
        return fault.step is None or step >= fault.step
    return fault.step is None or step == fault.step


_script: Script | None = None


def _own_script() -> Script:
    global _script
    if _script is None:  # read once, and not before: a process that forks workers reads nothing for them
        _script = Script.from_environment(os.environ)
    return _script


def at(point: str, step: int, *, path: str | os.PathLike[str] | None = None, memory: bool = False) -> None:
    """Cause the faults that are planned for this worker at this point."""
    script = _own_script()
    if not script.waiting:
        return
    for fault in script.due(point, step, memory=memory):
        _note({"fault": fault.as_json(), "step": step})
        _let_happen(fault, step, path)


class FaultInjector(StepObserver):
    """An observer that causes the faults planned for this worker's steps, after all other observers."""

    may_raise = True

    @classmethod
    def from_environment(cls) -> "FaultInjector | None":
        return cls() if _own_script().waiting else None

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        at("step", step)

    def on_enter(self, step: int, phase: Phase, now: int) -> None:
        if phase is Phase.TRACE:
            at("tracing", step)


def warned(text: str) -> None:
    """Log a warning about a backup, so that `tfdist chaos` knows that a fault was noticed."""
    _note({"warning": text})


def _note(content: dict[str, Any]) -> None:
    """Append a line to the log: a fault or warning, with the time on the machine's monotonic clock."""
    if log := FAULTS_LOG.read(os.environ):
        line = {**content, "clock": time.monotonic()}
        with contextlib.suppress(OSError):
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)


def _let_happen(fault: Fault, step: int, path: str | os.PathLike[str] | None) -> None:
    said = f"{fault.kind!r} at {fault.at!r}, step {step}: a fault that {FAULTS.name} asks for"
    if fault.kind in SIGNALS:
        os.kill(_process_of(fault, said), SIGNALS[fault.kind])
    elif fault.kind in ("hang", "slow"):
        end = time.monotonic() + (float("inf") if fault.seconds is None else fault.seconds)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 60.0))
    elif fault.kind == "exit":
        os._exit(EXIT_CODE)
    elif fault.kind == "exception":
        raise RuntimeError(said)
    elif fault.kind == "disk-full":
        raise OSError(errno.ENOSPC, said)
    elif path is None:
        raise ConfigError(
            f"{said}; nothing has been written there yet. Let it happen at 'save-commit'.", name="at", received=fault.at
        )
    else:
        _change_a_byte(Path(path))


def _process_of(fault: Fault, said: str) -> int:
    if fault.task is None or fault.task == CHIEF:
        return os.getpid()
    try:
        return int(json.loads(Path(TASKS_FILE.read(os.environ)).read_text(encoding="utf-8"))[fault.task])
    except (OSError, KeyError) as error:
        raise ConfigError(
            f"{said}, is for {fault.task!r}, and this job has no such task. `tfdist run --strategy parameter-server` "
            "has.",
            name="task",
            received=fault.task,
        ) from error


def _change_a_byte(path: Path) -> None:
    """Flip the middle byte of the file, or of the largest file of the directory."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    with max(files, key=lambda file: file.stat().st_size).open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 2)
        byte = file.read(1)
        file.seek(-len(byte), os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]) if byte else b"x")
