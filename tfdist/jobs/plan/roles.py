"""The roles of a job's processes, and the effect of the end of one on the others.

All supervision that differs between roles is in their restart policies; the supervisor knows no role by name.
"""

from dataclasses import dataclass
from enum import Enum

from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.launch_config import LaunchConfig

SAME_FAILURES = 3  # in a row, at the same step: the failure is deterministic
BLAME_SECONDS = 1.0  # a server that ends so soon after the chief's failure was its cause


class Scope(Enum):
    """The processes that are started again when one fails."""

    GROUP = "group"  # all processes of the job, together
    MEMBER = "member"  # the process alone, at its address, while the others continue


class Success(Enum):
    """The meaning of exit code 0."""

    WAIT = "wait"  # the others are waited for
    COMPLETE = "complete"  # the work of the job is done: the others are ended
    FAILURE = "failure"  # a failure: the process serves the others until it is ended


class Consequence(Enum):
    WAIT = "wait"  # nothing, until the others have ended
    COMPLETE = "complete"  # the others are ended, and the job has succeeded
    REPLACE = "replace"  # the process is started again, the others continue
    LOSE = "lose"  # the others continue without it
    RESTART = "restart"  # all are ended and started again
    FAIL = "fail"  # all are ended, and the job has failed


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """The effect of the end of a process, by its role, on the other processes."""

    scope: Scope = Scope.GROUP
    on_success: Success = Success.WAIT
    only_if_killed: bool = False  # an exception or exit code fails the job, because a restart would repeat it
    kills: bool = False  # the others are killed before a restart, because they hold no unsaved state
    blame_seconds: float = 0.0  # for which the end of another process may turn out to be the cause
    same_failures: int | None = None  # in a row at one step, which end the job


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role: the processes of a task type. Some roles run the script and report steps; in some, all step together."""

    name: str
    count: int
    restart_policy: RestartPolicy
    runs_script: bool = False
    in_step: bool = False


IN_STEP = RestartPolicy(kills=True, same_failures=SAME_FAILURES)
CHIEF = RestartPolicy(on_success=Success.COMPLETE, only_if_killed=True, blame_seconds=BLAME_SECONDS)
STATELESS = RestartPolicy(scope=Scope.MEMBER, on_success=Success.FAILURE)
SERVER = RestartPolicy(on_success=Success.FAILURE)


def roles_of(config: LaunchConfig) -> tuple[Role, ...]:
    if not config.parameter_servers:
        return (Role(name="worker", count=config.workers, restart_policy=IN_STEP, runs_script=True, in_step=True),)
    return (
        Role(name="chief", count=1, restart_policy=CHIEF, runs_script=True),
        Role(name="worker", count=config.workers, restart_policy=STATELESS),
        Role(name="ps", count=config.parameter_servers, restart_policy=SERVER),
    )


def members(roles: tuple[Role, ...]) -> tuple[tuple[TaskId, Role], ...]:
    return tuple((TaskId(type=role.name, index=index), role) for role in roles for index in range(role.count))


def tasks(config: LaunchConfig) -> tuple[TaskId, ...]:
    return tuple(task for task, _ in members(roles_of(config)))


def consequence(policy: RestartPolicy, returncode: int, *, recorded: bool, restarts_left: bool) -> Consequence:
    if returncode == 0 and policy.on_success is not Success.FAILURE:
        return Consequence.WAIT if policy.on_success is Success.WAIT else Consequence.COMPLETE
    if policy.scope is Scope.MEMBER:
        return Consequence.REPLACE if restarts_left else Consequence.LOSE
    if policy.only_if_killed and (returncode >= 0 or recorded):
        return Consequence.FAIL
    return Consequence.RESTART if restarts_left else Consequence.FAIL
