"""Follow a submitted Kubernetes job to its end: output of pod 0, waiting pods, the first failure."""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import TfdistError
from tfdist.jobs.launchers.kubernetes import pod_states
from tfdist.jobs.launchers.kubernetes.kubernetes_api import Cluster, owned, said
from tfdist.jobs.launchers.kubernetes.manifests import secret
from tfdist.jobs.launchers.kubernetes.pod_outputs import Receiver, require_writable
from tfdist.jobs.launchers.kubernetes.pods import Request, Values
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
    leaves nothing. Ctrl-C and SIGTERM delete the job, whose pods get SIGTERM and the grace period; again, at once.
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


@dataclass(eq=False)
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
        self._ended: dict[int, pod_states.Ended] = {}  # of the last of each index, also when it is gone
        self._logs: dict[str, threading.Thread] = {}
        self._over = threading.Event()
        self._told = ""
        self._heeded = 0

    def run(self) -> int:
        watcher = threading.Thread(target=self._watch, daemon=True)
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
        try:
            what, pod = self._changes.get(timeout=seconds)
        except queue.Empty:
            return
        while True:
            self._learn(what, pod)
            try:
                what, pod = self._changes.get_nowait()
            except queue.Empty:
                return

    def _learn(self, what: str, pod: Values) -> None:
        uid, index = pod["metadata"]["uid"], pod_states.index_of(pod)
        if uid not in self._seen:  # it replaces an ended pod
            self._seen.add(uid)
            self._uids[index] = uid
            self._ended.pop(index, None)
        if self._uids[index] != uid:
            return
        if (end := pod_states.how_it_ended(pod)) is not None:
            self._ended[index] = end
        if what == "gone":
            self._pods.pop(index, None)
        else:
            self._pods[index] = pod
        if index == 0 and pod_states.is_running(pod) and uid not in self._logs:
            name = pod["metadata"]["name"]
            self._logs[uid] = threading.Thread(target=self._follow, args=(name, uid), daemon=True)
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
        if text := pod_states.waiting(here, self.request):
            self._tell(text)
        elif not is_early and not self._ended and len(here) < self.request.pods:
            with contextlib.suppress(*self.cluster.failures):
                complaints = self.cluster.complaints(self.owner)
                self._tell(pod_states.missing(len(here), complaints, self.request))

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.say(text)

    def _outcome(self, seen: Values | None) -> int | None:
        """The exit code of a job that has ended, once its log was shown; None while it runs."""
        held = {} if seen is None else pod_states.conditions(seen)
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
        first = pod_states.first_failure(self._ended.values())
        if first is None:
            self.say(f"the job has failed: {held['Failed']}")
            return 1
        self.say(pod_states.described(first, pods=self.request.pods, log_is_shown=first.index == 0))
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
