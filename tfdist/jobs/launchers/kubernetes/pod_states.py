"""Why the pods of a job wait, and which failed first: pure functions of the API server's objects."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tfdist.jobs.launchers.kubernetes.pods import CONTAINER, Request

Pod = Mapping[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
SAME_MOMENT_SECONDS = 2.0  # times have seconds only, and peers of a dead pod end at once

# cures for reasons to wait that may last
_CURES = {
    "ImagePullBackOff": "Name an image that the nodes can pull; --pod FILE may have a pull secret.",
    "ErrImagePull": "Name an image that the nodes can pull; --pod FILE may have a pull secret.",
    "InvalidImageName": "Name another image.",
    "ErrImageNeverPull": "Name an image that is on the nodes.",
    "CreateContainerConfigError": "What --pod FILE names has to be there.",
    "CreateContainerError": "The image has to have python, with tfdist.",
}
_NEVER_A_CONSEQUENCE = frozenset({137, 139, 135, 132, 136})  # SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE
_ALWAYS_A_CONSEQUENCE = frozenset({143})  # SIGTERM, as the cluster ends the others


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a pod has ended: its exit code, and the reason and message of Kubernetes, or its last lines."""

    index: int
    name: str
    node: str
    exit_code: int
    reason: str
    message: str
    finished: str


def index_of(pod: Pod) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def is_running(pod: Pod) -> bool:
    """True if the container has started, and so has a log."""
    return any(
        one["name"] == CONTAINER and "waiting" not in one["state"] for one in _containers(pod) if one.get("state")
    )


def why_it_waits(pod: Pod) -> str:
    """Why a pod does not run; empty if it runs, or if no reason is known."""
    status = pod.get("status", {})
    if status.get("phase", "Pending") != "Pending":
        return ""
    for one in _containers(pod):
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            said = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": .")
            return f"{said}. {_CURES.get(waiting['reason'], '')}".rstrip(" .")
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled yet")
    return ""


def waiting(pods: Iterable[Pod], request: Request) -> str:
    """The report of waiting pods: why, how many, and what each requests; may be empty.

    Example:
        >>> condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
        >>> pod = {"status": {"phase": "Pending", "conditions": [condition]}}
        >>> waiting([pod, pod], Request(name="t", image="i", pods=2, arguments=(), resources={"cpu": "64"}))
        '2 of 2 pods wait: 0/3 nodes are available. Each asks for cpu 64'
    """
    reasons = [reason for pod in pods if (reason := why_it_waits(pod))]
    if not reasons:
        return ""
    most = max(dict.fromkeys(reasons), key=reasons.count)
    return f"{len(reasons)} of {request.pods} pods wait: {most.rstrip('.')}. {_asked(request)}"


def missing(there: int, complaints: Sequence[str], request: Request) -> str:
    """The report of pods that were not created, without their names, which change at every attempt.

    Example:
        >>> said = 'Error creating: pods "t-1-x2x4z" is forbidden: exceeded quota: small'
        >>> missing(1, [said], Request(name="t", image="i", pods=2, arguments=(), resources={"cpu": "64"}))
        '1 of 2 pods are there: pods "t-..." is forbidden: exceeded quota: small. Each asks for cpu 64'
    """
    if not complaints:
        return f"{there} of {request.pods} pods are there: the cluster has not made the others, and does not say why"
    why = complaints[-1].rpartition("Error creating: ")[2].rstrip(".")  # behind it when there are many like it
    why = re.sub(rf'pods "{request.name}-[a-z0-9-]*"', f'pods "{request.name}-..."', why)
    return f"{there} of {request.pods} pods are there: {why}. {_asked(request)}"


def _asked(request: Request) -> str:
    asked = ", ".join(f"{what} {quantity}" for what, quantity in request.resources.items()) or "nothing in particular"
    return f"Each asks for {asked}"


def how_it_ended(pod: Pod) -> Ended | None:
    """How a pod has ended, or None; a container of `--pod FILE` ends it only by failing, and the pod with it."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    node = pod.get("spec", {}).get("nodeName", "")
    for one in _containers(pod):
        end = one.get("state", {}).get("terminated")
        if end is not None and (one["name"] == CONTAINER or (end["exitCode"] and status.get("phase") == "Failed")):
            why = status.get("reason") or end.get("reason", "")
            message = status.get("message") or end.get("message") or ""
            finished = str(end.get("finishedAt") or "")
            return Ended(
                index=index_of(pod), name=name, node=node, exit_code=int(end["exitCode"]), reason=why, message=message,
                finished=finished,
            )  # fmt: skip
    if status.get("phase") == "Failed":  # a lost node reports nothing about its containers
        why, message = status.get("reason", "Failed"), status.get("message", "")
        return Ended(index=index_of(pod), name=name, node=node, exit_code=1, reason=why, message=message, finished="")
    return None


def first_failure(ended: Iterable[Ended]) -> Ended | None:
    """The pod that failed first; None if none did.

    A killed pod did not die of its peers' errors: at about the same time, its end is the cause.

    Example:
        >>> def end(index, code, second):
        ...     finished = f"2026-11-25T04:00:0{second}Z"
        ...     return Ended(index=index, name="", node="", exit_code=code, reason="", message="", finished=finished)
        >>> first_failure([end(0, 1, 1), end(1, 137, 2), end(2, 1, 0)]).index
        1
    """
    failed = [one for one in ended if one.exit_code != 0]
    if not failed:
        return None
    first = min(_seconds(one.finished) for one in failed)

    def place(one: Ended) -> tuple[bool, bool, float, int]:
        moment = _seconds(one.finished)
        late = moment - first if moment > first else 0.0
        is_cause = one.exit_code in _NEVER_A_CONSEQUENCE and late <= SAME_MOMENT_SECONDS
        return one.exit_code in _ALWAYS_A_CONSEQUENCE, not is_cause, late, one.index

    return min(failed, key=place)


def described(failure: Ended, *, pods: int, log_is_shown: bool) -> str:
    on = f" on node {failure.node}" if failure.node else ""
    why = f"{failure.reason}, " if failure.reason not in ("", "Error") else ""
    text = f"pod {failure.name} (of {pods}){on} failed first: {why}exit code {failure.exit_code}"
    if failure.reason == "OOMKilled":
        text += "\n  It used more memory than it was given: ask for more with --memory-per-worker."
    if failure.message and not (log_is_shown and failure.reason in ("", "Error")):
        text += "".join(f"\n  {line}" for line in failure.message.rstrip().splitlines())
    return text


def conditions(owner: Mapping[str, Any]) -> dict[str, str]:
    """The conditions of a Job or a JobSet that hold, with their reasons."""
    found = owner.get("status", {}).get("conditions", ())
    return {
        one["type"]: ": ".join(filter(None, [one.get("reason"), one.get("message")]))
        for one in found
        if one["status"] == "True"
    }


def _containers(pod: Pod) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _seconds(moment: str) -> float:
    """A moment in seconds; an unknown one is last."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return math.inf
