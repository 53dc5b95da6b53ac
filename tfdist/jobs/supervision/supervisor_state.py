"""The supervisor's state, the events that it receives, and the actions that it decides on.

RUNNING    all is well; a worker that has recorded a failure gets a moment to end by itself
STOPPING   everybody was asked to end
KILLING    the grace period is over, or nobody holds anything that is not saved, or Ctrl-C came again
DONE       no process runs
LOST       a process survived SIGKILL (the kernel holds it): the agent goes without it
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.roles import Role, members
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.monitor.halt import StepPosition

_MOST_NAMES = 6  # in one line


class Phase(Enum):
    """Where a start of the job is."""

    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    DONE = "done"
    LOST = "lost"


class Verdict(Enum):
    """What the end of the processes means."""

    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RESTART = "restart"


class Purpose(Enum):
    """Why all workers stop before the same step."""

    RESIZE = "resize"
    LEAVE = "leave"
    EVICT = "evict"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A request to all workers to stop before the same step.

    Attributes:
        purpose: why.
        asked: clock time of the request.
        target: the last step that they run, once it is known.
    """

    purpose: Purpose
    asked: float
    target: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What does not change while the processes of one start run.

    Attributes:
        roles: of the job; processes of the first run the script.
        grace_seconds: between the request to end and SIGKILL.
        max_restarts: how often all are started again after failures; and how often single processes are replaced.
        min_workers, max_workers: between these the number of workers that step together may be changed.
    """

    roles: tuple[Role, ...]
    grace_seconds: float
    max_restarts: int = 0
    min_workers: int = 1
    max_workers: int = 1

    @cached_property
    def everybody(self) -> tuple[tuple[TaskId, Role], ...]:
        """Every process and its role, by its index."""
        return members(self.roles)

    @property
    def in_step(self) -> bool:
        """Whether all processes step together, so that each failure and each hang is that of all."""
        return self.roles[0].in_step

    def task(self, index: int) -> TaskId:
        """Return what a process is in the cluster."""
        return self.everybody[index][0]

    def role(self, index: int) -> Role:
        """Return the role of a process."""
        return self.everybody[index][1]

    def scripts(self, running: Iterable[int]) -> frozenset[int]:
        """Return those of the processes that run the script."""
        return frozenset(index for index in running if self.role(index).runs_script)

    def names(self, running: Iterable[int]) -> str:
        """Return the names of some processes, or how many they are."""
        names = [str(self.task(index)) for index in sorted(running)]
        return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} processes"

    def shown(self, running: Iterable[int]) -> str:
        """Return how many workers these processes are, or their names where not all are workers."""
        running = frozenset(running)
        return shown(len(running)) if self.in_step else self.names(running)

    def have(self, running: Iterable[int]) -> str:
        """Return what `shown` does, and the verb.

        Example:
            >>> from tfdist.jobs.plan.roles import IN_STEP
            >>> worker = Role(name="worker", count=2, restart_policy=IN_STEP, runs_script=True, in_step=True)
            >>> Rules(roles=(worker,), grace_seconds=10.0).have({0, 1})
            '2 workers have'
        """
        running = frozenset(running)
        return f"{self.shown(running)} {'has' if len(running) == 1 else 'have'}"


@dataclass(frozen=True, kw_only=True)
class Exited:
    """Event: a process has ended.

    Attributes:
        worker: its index.
        returncode: its exit code, or the negative number of the signal that killed it.
        time: when, on the agent's clock.
        recorded: whether it had recorded a failure.
    """

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
    """Event: the agent got a signal."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Event: nothing but time has passed."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Event: the agent has looked at what workers that step together report.

    Attributes:
        positions: of the workers that run.
        steps: whether somebody has started a step, and nobody has left `fit`.
        leaving: workers that were asked to leave.
        ended_for: seconds for which all of them have had nothing left to do; 0 while one has.
    """

    positions: tuple[StepPosition, ...]
    steps: bool
    leaving: frozenset[int] = frozenset()
    ended_for: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Event: somebody asks for so many workers."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class Evict:
    """Event: a worker stays slow, and the job is to go on without it.

    Attributes:
        worker: which.
        is_replaced: whether as many go on, another process in its place.
        text: what the user is told.
    """

    worker: int
    is_replaced: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Send:
    """Action: send the signal to these processes; SIGKILL goes to all processes of their groups."""

    workers: frozenset[int]
    number: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """Action: start this process, which has ended, again."""

    worker: int


@dataclass(frozen=True, kw_only=True)
class Say:
    """Action: tell the user, in one line."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Action: ask all workers to hold before their next step."""


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """Action: take that back."""


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """Action: let all workers run up to and including this step."""

    step: int


Event = Exited | Recorded | Received | Tick | Looked | Hung | Asked | Evict
Action = Send | Start | Say | Stop | GoOn | StopAfter


@dataclass(frozen=True, kw_only=True)
class State:
    """One start of the job, as the agent knows it.

    Attributes:
        running: processes that have not ended.
        size: how many this start has.
        wanted: how many the next one has.
        phase: where it is.
        deadline: clock time of the next step that time alone brings, or None.
        received: the signal that asked the job to end, if it was one.
        verdict: what the end of the processes will mean.
        failed: whether a failure or a hang is why this start ends.
        cause: whose end that was, where the supervisor says so; else the first failure by time is the cause.
        hang: what is known of it, if somebody hangs.
        restarts: how often all have been started again after a failure, before this start.
        replaced: how often single processes have been, over all starts.
        failed_at: clock time at which a failure was seen of which the cause is not known yet, or None.
        suspect: how the process ended whose failure that was, if it has.
        asked_at: clock time at which processes were asked to end; infinity before.
        steps: whether the workers report steps now, so that they can be asked to stop before one.
        halt: the request to stop, if there is one.
        halted: workers that have stopped as asked, and have saved.
        leaving: workers that were asked to leave, or are evicted.
    """

    running: frozenset[int]
    size: int
    wanted: int
    phase: Phase = Phase.RUNNING
    deadline: float | None = None
    received: int | None = None
    verdict: Verdict = Verdict.OPEN
    failed: bool = False
    cause: int | None = None
    hang: Hang | None = None
    restarts: int = 0
    replaced: int = 0
    failed_at: float | None = None
    suspect: Exited | None = None
    asked_at: float = float("inf")
    steps: bool = False
    halt: Halt | None = None
    halted: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()


Next = tuple[State, tuple[Action, ...]]


def first_state(rules: Rules, *, restarts: int = 0, replaced: int = 0) -> State:
    """Return the state of processes that have just been started.

    Example:
        >>> from tfdist.jobs.plan.launch_config import LaunchConfig
        >>> from tfdist.jobs.plan.roles import roles_of
        >>> rules = Rules(roles=roles_of(LaunchConfig(target="train.py", workers=2)), grace_seconds=10.0)
        >>> sorted(first_state(rules).running)
        [0, 1]
    """
    size = len(rules.everybody)
    return State(running=frozenset(range(size)), size=size, wanted=size, restarts=restarts, replaced=replaced)


def shown(workers: int) -> str:
    """Return a number of workers in words.

    Example:
        >>> shown(1), shown(2)
        ('1 worker', '2 workers')
    """
    return f"{workers} worker{'' if workers == 1 else 's'}"
