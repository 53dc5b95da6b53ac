"""The supervisor's state, the events that it receives, and the actions that it decides on.

RUNNING    all is well; a worker that has recorded a failure gets a moment to end by itself
STOPPING   all were asked to end
KILLING    the grace period is over, or no process holds unsaved state, or Ctrl-C came again
DONE       no process runs
LOST       a process survived SIGKILL (the kernel holds it): the agent continues without it
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.roles import Role, members
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.monitor.status import StepPosition
from tfdist.validation import counted

_MOST_NAMES = 6  # in one line


class Phase(Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    DONE = "done"
    LOST = "lost"


class Verdict(Enum):
    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RESTART = "restart"


class Purpose(Enum):
    """The reason why all workers stop before the same step."""

    RESIZE = "resize"
    LEAVE = "leave"
    EVICT = "evict"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A request to all workers to stop before the same step. `target` is the last step that they run, once known."""

    purpose: Purpose
    asked: float
    target: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The constants of one start. Processes of the first role run the script."""

    roles: tuple[Role, ...]
    grace_seconds: float
    max_restarts: int = 0
    min_workers: int = 1
    max_workers: int = 1

    @cached_property
    def members(self) -> tuple[tuple[TaskId, Role], ...]:
        return members(self.roles)

    @property
    def in_step(self) -> bool:
        """Whether all processes step together, so that a failure or hang concerns all of them."""
        return self.roles[0].in_step

    def task(self, index: int) -> TaskId:
        return self.members[index][0]

    def role(self, index: int) -> Role:
        return self.members[index][1]

    def scripts(self, running: Iterable[int]) -> frozenset[int]:
        return frozenset(index for index in running if self.role(index).runs_script)

    def names(self, running: Iterable[int]) -> str:
        """Return the names of processes, or only their number."""
        names = [str(self.task(index)) for index in sorted(running)]
        return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} processes"

    def shown(self, running: Iterable[int]) -> str:
        running = frozenset(running)
        return shown(len(running)) if self.in_step else self.names(running)

    def have(self, running: Iterable[int]) -> str:
        running = frozenset(running)
        return f"{self.shown(running)} {'has' if len(running) == 1 else 'have'}"


@dataclass(frozen=True, kw_only=True)
class Exited:
    """Event: a process has ended. `returncode` is negative for a signal."""

    worker: int
    returncode: int
    time: float
    recorded: bool = False


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Event: a process has recorded a failure, and still runs."""

    worker: int


@dataclass(frozen=True, kw_only=True)
class Received:
    number: int


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Event: only time has passed."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Event: the reports of workers that step together."""

    positions: tuple[StepPosition, ...]
    steps: bool  # a step was started, and no worker has left `fit`
    leaving: frozenset[int] = frozenset()
    ended_for: float = 0.0  # seconds for which all of them had nothing left to do


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Event: a client asks for this number of workers."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class Evict:
    """Event: a worker stays slow; the job continues with another process in its place, or without it."""

    worker: int
    is_replaced: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Send:
    """Action: send a signal to these processes; SIGKILL goes to their groups."""

    workers: frozenset[int]
    number: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """Action: start this ended process again."""

    worker: int


@dataclass(frozen=True, kw_only=True)
class Say:
    text: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Action: ask all workers to hold before their next step."""


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """Action: withdraw the request to hold."""


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """Action: let all workers run up to and including this step."""

    step: int


Event = Exited | Recorded | Received | Tick | Looked | Hung | Asked | Evict
Action = Send | Start | Say | Stop | GoOn | StopAfter


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of one start of the job, as the agent knows it."""

    running: frozenset[int]
    size: int
    wanted: int
    phase: Phase = Phase.RUNNING
    deadline: float | None = None  # when time alone causes the next step
    received: int | None = None
    verdict: Verdict = Verdict.OPEN
    failed: bool = False
    cause: int | None = None  # the process whose end ended the start, if the supervisor knows it
    hang: Hang | None = None
    restarts: int = 0  # in earlier starts, like `replaced`
    replaced: int = 0
    failed_at: float | None = None  # of a failure whose cause is not known yet, like `suspect`
    suspect: Exited | None = None
    asked_at: float = float("inf")
    steps: bool = False  # workers report steps, so they can stop before one
    halt: Halt | None = None
    halted: frozenset[int] = frozenset()  # have stopped and saved
    leaving: frozenset[int] = frozenset()


Next = tuple[State, tuple[Action, ...]]


def first_state(rules: Rules, *, restarts: int = 0, replaced: int = 0) -> State:
    size = len(rules.members)
    return State(running=frozenset(range(size)), size=size, wanted=size, restarts=restarts, replaced=replaced)


def shown(workers: int) -> str:
    return counted(workers, "worker")
