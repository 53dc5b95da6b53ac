"""Roles of a job's processes, and what the end of one means for the others.

A job is a few roles. All supervision that differs between them is in their restart policies; the supervisor knows no
role by its name.
"""

from dataclasses import dataclass
from enum import Enum

from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.launch_config import LaunchConfig

SAME_FAILURES = 3  # in a row, at the same step: the failure is deterministic
BLAME_SECONDS = 1.0  # a server that ends so soon after the chief's failure was its cause


class Scope(Enum):
    """Who is started again when a process fails."""

    GROUP = "group"  # all processes of the job, together
    MEMBER = "member"  # the process alone, at its address, while the others go on


class Success(Enum):
    """What an exit with code 0 means."""

    WAIT = "wait"  # the others are waited for
    COMPLETE = "complete"  # the work of the job is done: the others are ended
    FAILURE = "failure"  # a failure: the process serves the others until it is ended


class Consequence(Enum):
    """What follows from the end of a process."""

    WAIT = "wait"  # nothing, until the others have ended
    COMPLETE = "complete"  # the others are ended, and the job has succeeded
    REPLACE = "replace"  # the process is started again, the others go on
    LOSE = "lose"  # the others go on without it
    RESTART = "restart"  # all are ended and started again
    FAIL = "fail"  # all are ended, and the job has failed


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What the end of a process of a role means for the others.

    Attributes:
        scope: who is started again.
        on_success: what exit code 0 means.
        only_if_killed: whether an exception or another exit code fails the job at once, because another start would
            meet it again; else every failure is a reason to start again.
        kills: whether the others are killed at once before all are started again, because none of them holds anything
            that is not saved; else they are asked to end, and have the grace period.
        blame_seconds: for how long its failure may turn out to follow from the end of another process.
        same_failures: so many equal failures in a row at the same step end the job; None for any number.
        required: whether the job fails when the last process of the role is lost.
    """

    scope: Scope = Scope.GROUP
    on_success: Success = Success.WAIT
    only_if_killed: bool = False
    kills: bool = False
    blame_seconds: float = 0.0
    same_failures: int | None = None
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Role:
    """Processes of a job that do the same.

    Attributes:
        name: the task type in the cluster: "worker", "chief", "ps", "evaluator".
        count: how many there are.
        restart_policy: what the end of one of them means.
        runs_script: whether they run the user's script, report their steps and get the signals to the job; else they
            serve those that do, and are ended after them.
        in_step: whether they start the same steps together: the hang of one is that of all, and all can be stopped
            before the same step.
    """

    name: str
    count: int
    restart_policy: RestartPolicy
    runs_script: bool = False
    in_step: bool = False


IN_STEP = RestartPolicy(kills=True, same_failures=SAME_FAILURES)
CHIEF = RestartPolicy(on_success=Success.COMPLETE, only_if_killed=True, blame_seconds=BLAME_SECONDS)
STATELESS = RestartPolicy(scope=Scope.MEMBER, on_success=Success.FAILURE)
SERVER = RestartPolicy(on_success=Success.FAILURE)
OBSERVER = RestartPolicy(scope=Scope.MEMBER, required=False)


def roles_of(config: LaunchConfig) -> tuple[Role, ...]:
    """Return the roles of the job; processes of the first run the script.

    Example:
        >>> [(role.name, role.count) for role in roles_of(LaunchConfig(target="t.py", workers=2, parameter_servers=1))]
        [('chief', 1), ('worker', 2), ('ps', 1)]
        >>> [(role.name, role.count) for role in roles_of(LaunchConfig(target="t.py", workers=2))]
        [('worker', 2)]
    """
    if not config.parameter_servers:
        return (Role(name="worker", count=config.workers, restart_policy=IN_STEP, runs_script=True, in_step=True),)
    return (
        Role(name="chief", count=1, restart_policy=CHIEF, runs_script=True),
        Role(name="worker", count=config.workers, restart_policy=STATELESS),
        Role(name="ps", count=config.parameter_servers, restart_policy=SERVER),
    )


def members(roles: tuple[Role, ...]) -> tuple[tuple[TaskId, Role], ...]:
    """Return every process and its role, in the order of their indexes.

    Example:
        >>> [str(task) for task, _ in members(roles_of(LaunchConfig(target="t.py", workers=2, parameter_servers=1)))]
        ['chief', 'worker 0', 'worker 1', 'ps 0']
    """
    return tuple((TaskId(type=role.name, index=index), role) for role in roles for index in range(role.count))


def tasks(config: LaunchConfig) -> tuple[TaskId, ...]:
    """Return what the processes of the job are, in the order of their indexes.

    Example:
        >>> [str(task) for task in tasks(LaunchConfig(target="train.py", workers=2))]
        ['worker 0', 'worker 1']
    """
    return tuple(task for task, _ in members(roles_of(config)))


def consequence(policy: RestartPolicy, returncode: int, *, recorded: bool, restarts_left: bool) -> Consequence:
    """Return what follows from the end of a process.

    Example:
        >>> consequence(STATELESS, -9, recorded=False, restarts_left=True)
        <Consequence.REPLACE: 'replace'>
        >>> consequence(CHIEF, 1, recorded=True, restarts_left=True)
        <Consequence.FAIL: 'fail'>
    """
    if returncode == 0 and policy.on_success is not Success.FAILURE:
        return Consequence.WAIT if policy.on_success is Success.WAIT else Consequence.COMPLETE
    if policy.scope is Scope.MEMBER:
        return Consequence.REPLACE if restarts_left else Consequence.LOSE
    if policy.only_if_killed and (returncode >= 0 or recorded):
        return Consequence.FAIL
    return Consequence.RESTART if restarts_left else Consequence.FAIL
