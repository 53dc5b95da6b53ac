"""The following of a Kubernetes job to its end: the output of pod 0, reasons for waiting, and the first failure."""

import contextlib
import math
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tfdist.errors import TfdistError
from tfdist.jobs.launchers.kubernetes.kubernetes_api import Cluster, owned, said
from tfdist.jobs.launchers.kubernetes.manifests import secret
from tfdist.jobs.launchers.kubernetes.pod_outputs import Receiver, require_writable
from tfdist.jobs.launchers.kubernetes.pods import CONTAINER, Request, Values
from tfdist.waiting import handled

LOOK_SECONDS = 1.0  # from one look at the Job to the next
_AGAIN_SECONDS = 1.0  # before a broken connection is tried again
_END_SECONDS = 5.0  # for threads, before the process ends without them
_LOG_SECONDS = 10.0  # for which the rest of a log is waited for
_UNMADE_SECONDS = 5.0  # after which it is asked why there are fewer pods than there should be


def submit(
    cluster: Cluster, request: Request, made: Sequence[Values], values: Mapping[str, str], *, say: Callable[[str], None]
) -> int:
    """Submit a job, show the output of its first pod, and wait for its end; return its exit code.

    The Job is created suspended, and owns what is created after it: whenever this process is killed, deleting the Job
    leaves nothing. Ctrl-C and SIGTERM delete the job, whose pods get SIGTERM and the grace period; a second signal
    deletes it at once.
    """
    require_writable(request.outputs)
    first = {**made[0], "spec": {**made[0]["spec"], "suspend": True}}
    asked: list[int] = []
    received: list[int] = []
    sizing = (signal.SIGUSR1, signal.SIGUSR2)
    with handled(lambda got, _: asked.append(got), sizing), handled(lambda got, _: received.append(got)):
        created = cluster.create(first)
        owner: Values = {**{name: first[name] for name in ("apiVersion", "kind")}, "metadata": created["metadata"]}
        owner["selector"] = "=".join(request.selector)
        try:
            for one in (secret(request, values), *made[1:]):
                cluster.create(owned(one, owner))
            cluster.start(owner)
        except TfdistError:
            with contextlib.suppress(*cluster.failures):
                cluster.delete(owner)
            raise
        say(f"{first['kind'].lower()} {request.name} is submitted to namespace {cluster.namespace} (Ctrl-C deletes it)")
        return _Following(cluster, request, owner, say, received, asked).run()


@dataclass(eq=False, repr=False)
class _Following:
    cluster: Cluster
    request: Request
    owner: Values
    say: Callable[[str], None]
    received: list[int]
    asked: list[int]

    def __post_init__(self) -> None:
        self._changes: queue.SimpleQueue[tuple[str, Values]] = queue.SimpleQueue()
        self._pods: dict[int, Values] = {}  # the present pod of each index
        self._uids: dict[int, str] = {}  # of the last of each index
        self._seen: set[str] = set()
        self._ended: dict[int, Ended] = {}  # of the last of each index, also when it is gone
        self._logs: dict[str, threading.Thread] = {}
        self._over = threading.Event()
        self._told = ""
        self._heeded = 0

    def run(self) -> int:
        watcher = threading.Thread(target=self._watch, name="pods", daemon=True)
        watcher.start()
        begun = looked = time.monotonic()
        try:
            while True:
                self._take(LOOK_SECONDS / 5)
                self._heed()
                if time.monotonic() - looked < LOOK_SECONDS:
                    continue
                looked = time.monotonic()
                self._tell_why_it_waits(is_early=looked - begun < _UNMADE_SECONDS)
                try:
                    seen = self.cluster.look(self.owner)
                except self.cluster.failures as error:
                    self._tell(f"the API server does not answer: {said(error)}")
                    continue
                if (code := self._outcome(seen)) is not None:
                    return code
        finally:
            self._over.set()
            self.cluster.end()
            for thread in (watcher, *self._logs.values()):
                thread.join(_END_SECONDS)

    def _watch(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(*self.cluster.failures):
                self.cluster.pods(
                    self.owner["selector"], lambda what, pod: self._changes.put((what, pod)), self._over.is_set
                )
            self._over.wait(_AGAIN_SECONDS)

    def _take(self, seconds: float) -> None:
        """Handle changes of pods; wait for the first."""
        with contextlib.suppress(queue.Empty):
            self._learn(*self._changes.get(timeout=seconds))
            while True:
                self._learn(*self._changes.get_nowait())

    def _learn(self, what: str, pod: Values) -> None:
        uid, index = pod["metadata"]["uid"], index_of(pod)
        if uid not in self._seen:  # it replaces an ended pod
            self._seen.add(uid)
            self._uids[index] = uid
            self._ended.pop(index, None)
        if self._uids[index] != uid:
            return
        if (end := how_it_ended(pod)) is not None:
            self._ended[index] = end
        if what == "gone":
            self._pods.pop(index, None)
        else:
            self._pods[index] = pod
        if index == 0 and is_running(pod) and uid not in self._logs:
            name = pod["metadata"]["name"]
            self._logs[uid] = threading.Thread(target=self._follow, args=(name, uid), name="log", daemon=True)
            self._logs[uid].start()

    def _follow(self, name: str, uid: str) -> None:
        """Show a pod's log; after a broken connection, continue where it broke."""
        receiver, shown = Receiver(self.request.outputs, self.say), 0
        while True:
            place = 0
            try:
                for data in self.cluster.log(name):
                    new = data[max(0, shown - place) :]
                    place += len(data)
                    shown = max(shown, place)
                    _show(receiver.shown(new))
                is_over = self._uids[0] != uid or 0 in self._ended
            except self.cluster.failures:
                is_over = self._uids[0] != uid or 0 not in self._pods
            if is_over or self._over.is_set():
                _show(receiver.shown(b"", is_last=True))
                return
            self._over.wait(_AGAIN_SECONDS)

    def _heed(self) -> None:
        """Delete the job at a signal, and at once at the second; explain signals that are meant for the launcher."""
        while self.asked:
            name = signal.Signals(self.asked.pop(0)).name
            pod = self._pods[0]["metadata"]["name"] if 0 in self._pods else "POD"
            how = f"kubectl -n {self.cluster.namespace} exec {pod} -- kill -{name.removeprefix('SIG')} 1"
            self.say(f"{name} is for the launcher, which runs in the first pod: {how}")
        while self._heeded < len(self.received):
            number, self._heeded = self.received[self._heeded], self._heeded + 1
            again = self._heeded > 1
            how = "its pods are killed" if again else "its pods get SIGTERM, and save; again: they are killed"
            self.say(f"{signal.Signals(number).name}: the job is deleted; {how}")
            with contextlib.suppress(*self.cluster.failures):
                self.cluster.delete(self.owner, at_once=again)

    def _tell_why_it_waits(self, *, is_early: bool) -> None:
        if self.received:
            return
        here = list(self._pods.values())
        if text := waiting(here, self.request):
            self._tell(text)
        elif not is_early and not self._ended and len(here) < self.request.pods:
            with contextlib.suppress(*self.cluster.failures):
                complaints = self.cluster.complaints(self.owner)
                self._tell(missing(len(here), complaints, self.request))

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.say(text)

    def _outcome(self, seen: Values | None) -> int | None:
        """Return the exit code of a job that has ended, once its log was shown; None while it runs."""
        held = {} if seen is None else conditions(seen)
        is_done = bool({"Complete", "Completed"} & held.keys())
        if seen is not None and not is_done and "Failed" not in held:
            return None
        self._settle()
        if is_done:
            return 0
        if self.received:
            return 128 + self.received[0]
        if seen is None:
            self.say("the job was deleted by another user or command")
            return 128 + signal.SIGTERM
        first = first_failure(self._ended.values())
        if first is None:
            self.say(f"the job has failed: {held['Failed']}")
            return 1
        self.say(described(first, pods=self.request.pods, log_is_shown=first.index == 0))
        return first.exit_code

    def _settle(self) -> None:
        """Wait for late reports about pods, and for the rest of the log."""
        until = time.monotonic() + _LOG_SECONDS
        for _ in range(3):
            self._take(LOOK_SECONDS / 5)
        for log in self._logs.values():
            log.join(max(0.0, until - time.monotonic()))


def _show(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


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
    """The end of a pod: its exit code, and the reason and message of Kubernetes, or its last lines."""

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
    """Return the reason why a pod does not run; empty if it runs, or if no reason is known."""
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
    """Return the report of waiting pods: their number, the reason, and the request of each; may be empty.

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
    """Return the report of pods that were not created, without their names, which change at every attempt.

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
    """Return the end of a pod, or None; a container of `--pod FILE` ends the pod only by failing."""
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
    """Return the pod that failed first; None if none did.

    A killed pod did not fail because of its peers: among ends at about the same time, its end is the cause.

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
    """Return the conditions of a Job or a JobSet that hold, with their reasons."""
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
    """Return a moment in seconds; an unknown moment comes last."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return math.inf
