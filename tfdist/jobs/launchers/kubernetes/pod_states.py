"""Interpret the state of a job's pods: why they wait, and which failed first. Pure functions.

A pod is the object as the API server gives it.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tfdist.jobs.launchers.kubernetes.pods import CONTAINER
from tfdist.jobs.launchers.kubernetes.request import Request

Pod = Mapping[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
SAME_MOMENT_SECONDS = 2.0  # ends are told to the second, and peers of the dead end at once

# what a container waits for that may not come by itself
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
    """How a pod has ended.

    Attributes:
        index: of the pod.
        name: of it.
        node: on which it ran.
        exit_code: of its container; 0 for success.
        reason: as Kubernetes has it, such as OOMKilled, Evicted or Error.
        message: what Kubernetes says of it, or the last lines that it wrote.
        finished: when, as Kubernetes writes it.
    """

    index: int
    name: str
    node: str
    exit_code: int
    reason: str
    message: str
    finished: str


def index_of(pod: Pod) -> int:
    """Return which pod of the job this is.

    Example:
        >>> index_of({"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "3"}}})
        3
    """
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def is_running(pod: Pod) -> bool:
    """Return whether its container has begun, and so has a log."""
    return any(
        one["name"] == CONTAINER and "waiting" not in one["state"] for one in _containers(pod) if one.get("state")
    )


def why_it_waits(pod: Pod) -> str:
    """Return why a pod does not run; empty when it does, or nobody has said.

    Example:
        >>> condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
        >>> why_it_waits({"status": {"phase": "Pending", "conditions": [condition]}})
        '0/3 nodes are available.'
    """
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
    """Return what to tell of pods that wait: why, how many, and what each of them asks for; empty if none does.

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
    """Return what to tell of pods that the cluster has not made.

    Each time that it tries again it is another pod's name, which is left out: what is said stays the same.

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
    """Return how a pod has ended; None while it runs.

    Another container, such as one of `--pod FILE`, ends a pod only if it has failed, and the pod with it.

    Example:
        >>> state = {"terminated": {"exitCode": 7, "reason": "Error", "finishedAt": "2026-11-25T04:00:00Z"}}
        >>> status = {"containerStatuses": [{"name": "node", "state": state}]}
        >>> how_it_ended({"metadata": {"name": "t-0"}, "status": status}).exit_code
        7
    """
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
    if status.get("phase") == "Failed":  # a node that is gone tells nothing of its containers
        why, message = status.get("reason", "Failed"), status.get("message", "")
        return Ended(index=index_of(pod), name=name, node=node, exit_code=1, reason=why, message=message, finished="")
    return None


def first_failure(ended: Iterable[Ended]) -> Ended | None:
    """Return the pod that failed first; None when none did.

    Who was killed did not die of what its peers raised: if that was in the same moment, its end comes first.

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
    """Return what to tell of the pod that failed first."""
    on = f" on node {failure.node}" if failure.node else ""
    why = f"{failure.reason}, " if failure.reason not in ("", "Error") else ""
    text = f"pod {failure.name} (of {pods}){on} failed first: {why}exit code {failure.exit_code}"
    if failure.reason == "OOMKilled":
        text += "\n  It used more memory than it was given: ask for more with --memory-per-worker."
    if failure.message and not (log_is_shown and failure.reason in ("", "Error")):
        text += "".join(f"\n  {line}" for line in failure.message.rstrip().splitlines())
    return text


def conditions(owner: Mapping[str, Any]) -> dict[str, str]:
    """Return the conditions of a Job or a JobSet that hold, and what is said of each.

    Example:
        >>> conditions({"status": {"conditions": [{"type": "Complete", "status": "True"}]}})
        {'Complete': ''}
    """
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
    """Return a moment as seconds; one that is not told comes last."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return math.inf
