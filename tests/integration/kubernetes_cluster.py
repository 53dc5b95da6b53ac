"""A stand-in for a cluster of Kubernetes: an API server for the requests of `tfdist run`, and processes as pods.

A real cluster is too large for a test (`tests/soak/kubernetes.py` has one). The stand-in checks requests against the
published schema, and allows only those that docker/kubernetes/role.yaml allows. It treats the pods of an indexed Job as
the documentation of Kubernetes says: by their policies for success and for failures, their grace period, and their
names. A pod is a process with process numbers and an address of its own, in one network for all pods.
"""

import contextlib
import copy
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

from tests.pods import Container

ROOT = Path(__file__).parents[2]
SCRIPTS = "/etc/tfdist"
INDEX = "batch.kubernetes.io/job-completion-index"
CORE = {"services": "Service", "secrets": "Secret", "configmaps": "ConfigMap"}
LOOK_SECONDS = 0.02
KILL_SECONDS = 60
WATCH_SECONDS = 2.0  # after which a watch ends, which is sooner than was asked for: a server may

Values = dict[str, Any]


@dataclass
class Pod:
    """A pod that is a process."""

    value: Values
    container: Container | None = None
    is_replaced: bool = False

    @property
    def index(self) -> int:
        return int(self.value["metadata"]["annotations"][INDEX])

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    def signal(self, number: int) -> None:
        assert self.container is not None
        self.container.signal(number)


@dataclass
class FakeCluster:
    """Objects, pods, and what was asked.

    Attributes:
        space: the network of the pods; None when they wait for ever, as there is no node for them.
        folder: for logs and scripts.
        variables: that pods have in addition.
        waits: why pods wait, if they do.
        complaint: why no pod can be made.
        outage: why nothing can be asked.
    """

    folder: Path
    space: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    waits: Values | None = None
    complaint: str = ""
    outage: str = ""
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    objects: dict[tuple[str, str], Values] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    events: list[Values] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    over: threading.Event = field(default_factory=threading.Event)

    def events_of_jobs(self) -> list[Values]:
        """Return the events about Jobs: one about this job, whose message varies, and two about others."""

        def event(name: str, pod: str, *, minutes: int = 0) -> Values:
            moment = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f'Error creating: pods "{pod}" is forbidden: {self.complaint}'
            return {"involvedObject": {"kind": "Job", "name": name}, "lastTimestamp": moment, "message": message}

        if not self.complaint:
            return []
        ours = event("train", f"train-0-{uuid.uuid4().hex[:5]}")
        if len(self.asked) % 2:  # as when there are many
            ours["message"] = f"(combined from similar events): {ours['message']}"
        others = event("train-2", "train-2-0-aaaaa", minutes=1), event("train", "train-0-bbbbb of old", minutes=-60)
        return [ours, *others]

    def pod(self, index: int) -> Pod:
        """Return the last pod of an index."""
        return next(pod for pod in reversed(self.pods) if pod.index == index)

    # Objects

    def create(self, plural: str, made: Values) -> tuple[int, Values]:
        if plural in self.refuses:
            return self.refuses[plural][0], {"message": self.refuses[plural][1]}
        if made["apiVersion"] in ("v1", "batch/v1"):
            try:
                kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
            except kubernetes_validate.ValidationError as error:
                return 422, {"message": str(error)}
        with self.lock:
            name = made["metadata"]["name"]
            if (plural, name) in self.objects:
                return 409, {"message": f'{plural} "{name}" already exists'}
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now, "resourceVersion": "1"}
            self.objects[plural, name] = {**made, "status": {}} if plural not in CORE else made
            return 201, made

    def patch(self, plural: str, name: str, change: Values) -> tuple[int, Values]:
        made = self.objects[plural, name]
        made["spec"] |= change["spec"]
        if not made["spec"]["suspend"]:
            threading.Thread(target=self.control, args=(plural, name), daemon=True).start()
        return 200, made

    def delete(self, plural: str, name: str) -> None:
        """End the pods of a Job, then the Job, then what it owns."""
        made = self.objects[plural, name]
        if "deletionTimestamp" in made["metadata"]:
            return
        made["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()

        def run() -> None:
            self.end_pods()
            with self.lock:
                uid = made["metadata"]["uid"]
                owners = {key: one["metadata"].get("ownerReferences", []) for key, one in self.objects.items()}
                for key, references in owners.items():
                    if key == (plural, name) or any(one["uid"] == uid for one in references):
                        self.objects.pop(key)

        threading.Thread(target=run, daemon=True).start()

    # The Job's controller and the kubelet

    def control(self, plural: str, name: str) -> None:
        """Keep one pod for each index until the Job has succeeded or failed."""
        made = self.objects[plural, name]
        spec, stem = made["spec"], name
        if plural == "jobsets":
            (replicated,) = spec["replicatedJobs"]
            spec, stem = replicated["template"]["spec"], f"{name}-{replicated['name']}-0"
        failures = 0
        while not self.over.wait(LOOK_SECONDS) and "deletionTimestamp" not in made["metadata"]:
            current: dict[int, Pod] = {pod.index: pod for pod in self.pods if not pod.is_replaced}
            for index in range(spec["completions"]):
                if index not in current and not self.complaint:
                    self.start(f"{stem}-{index}", index, name, spec["template"])
            for index, pod in current.items():
                code = self.observe(pod)
                if code is None:
                    continue
                if code == 0:
                    if str(index) == spec["successPolicy"]["rules"][0]["succeededIndexes"]:
                        self.conclude(made, "SuccessCriteriaMet", "SuccessPolicy")
                        self.end_pods()
                        self.conclude(made, "Completed" if plural == "jobsets" else "Complete", "SuccessPolicy")
                        return
                    continue
                action = self.action(spec, code)
                failures += action == "Count"
                if action == "FailJob" or failures > spec["backoffLimit"]:
                    reason = "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
                    self.conclude(made, "FailureTarget", reason)
                    self.end_pods()
                    self.conclude(made, "Failed", reason)
                    return
                pod.is_replaced = True  # and stays as long as the Job

    def conclude(self, made: Values, condition: str, reason: str) -> None:
        with self.lock:
            held = made["status"].get("conditions", [])
            made["status"]["conditions"] = [*held, {"type": condition, "status": "True", "reason": reason}]

    @staticmethod
    def action(spec: Values, code: int) -> str:
        """Return the action of the first rule that fits the exit code; without one the failure counts."""
        for rule in spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if codes and (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
        return "Count"

    def start(self, host: str, index: int, job: str, template: Values) -> None:
        """Start a pod, whose host has the name of its index, and whose own name no other has."""
        uid = str(uuid.uuid4())
        name = f"{host}-{uid[:5]}"
        labels = {"batch.kubernetes.io/job-name": job, "jobset.sigs.k8s.io/jobset-name": job}
        metadata = {"name": name, "uid": uid, "annotations": {INDEX: str(index)}, "labels": labels}
        pod = Pod({"metadata": metadata, "spec": copy.deepcopy(template["spec"]), "status": {"phase": "Pending"}})
        pod.value["spec"]["hostname"] = host
        (container,) = template["spec"]["containers"]
        if self.waits is not None:
            pod.value["status"] = self.waits
        elif self.space is not None:
            environ = {one["name"]: self.value_of(one) for one in container["env"]}
            environ |= {"HOSTNAME": host, "JOB_COMPLETION_INDEX": str(index), **self.variables}
            scripts = self.folder / "scripts"
            for volume in (one for one in template["spec"]["volumes"] if "configMap" in one):
                scripts.mkdir(exist_ok=True)
                for file, text in self.objects["configmaps", volume["configMap"]["name"]]["data"].items():
                    (scripts / file).write_text(text)
            words = [word.replace(SCRIPTS, str(scripts)) for word in container["args"]]
            words[0] = {"python": sys.executable}[words[0]]
            log = self.folder / f"{name}.log"
            pod.container = Container(self.space, host, words, variables=environ, folder=self.folder, log=log)
            pod.value["spec"]["nodeName"] = f"node-{index}"
            state = {"running": {"startedAt": datetime.now(UTC).isoformat()}}
            pod.value["status"] = {"phase": "Running", "containerStatuses": [{"name": "node", "state": state}]}
        self.pods.append(pod)
        self.tell("ADDED", pod)

    def value_of(self, variable: Values) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["secretKeyRef"]
        return str(self.objects["secrets", reference["name"]]["stringData"][reference["key"]])

    def observe(self, pod: Pod) -> int | None:
        """Return the exit code of a pod that has ended, and tell of it once."""
        code = None if pod.container is None else pod.container.exit_code()
        if code is None:
            return None
        status = pod.value["status"]
        if status["phase"] == "Running":
            end = {"exitCode": code, "reason": "Error" if code else "Completed"}
            end["finishedAt"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status["phase"] = "Failed" if code else "Succeeded"
            status["containerStatuses"] = [{"name": "node", "state": {"terminated": end}}]
            self.tell("MODIFIED", pod)
        return code

    def end_pods(self) -> None:
        """Ask all pods to end, kill them after their grace period, and wait for them."""
        running = [pod for pod in self.pods if pod.container is not None and pod.container.exit_code() is None]
        for pod in running:
            pod.signal(signal.SIGTERM)
        for pod in running:
            assert pod.container is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.container.wait(pod.value["spec"]["terminationGracePeriodSeconds"])
        self.kill_pods()

    def kill_pods(self) -> None:
        for pod in self.pods:
            if pod.container is not None:
                pod.signal(signal.SIGKILL)
                pod.container.wait(KILL_SECONDS)
                self.observe(pod)

    def tell(self, kind: str, pod: Pod) -> None:
        with self.lock:
            self.events.append({"type": kind, "object": copy.deepcopy(pod.value)})


@cache
def rules() -> list[Values]:
    """Return the rights that the documentation requires of a user who submits jobs."""
    found: list[Values] = yaml.safe_load((ROOT / "docker" / "kubernetes" / "role.yaml").read_text())["rules"]
    return found


def may(verb: str, group: str, resource: str) -> bool:
    return any(group in one["apiGroups"] and resource in one["resources"] and verb in one["verbs"] for one in rules())


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    cluster: FakeCluster

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, value: Values) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        self.cluster.asked.append(f"{self.command} {self.path}")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = json.loads(body) if body else {}
        if self.cluster.outage and self.command == "GET":
            return self.answer(500, {"message": self.cluster.outage})
        if url.path == "/version/":
            return self.answer(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.0"})
        found = re.fullmatch(r"/apis?/(.*)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(/log)?", url.path)
        assert found, url.path
        group, _, plural, name, is_log = found.groups()
        verb = {"POST": "create", "PATCH": "patch"}.get(self.command, "delete" if self.command == "DELETE" else "get")
        if name is None and verb != "create":
            verb = "deletecollection" if verb == "delete" else "watch" if "watch" in query else "list"
        if not may(verb, group.rpartition("/")[0], plural + (is_log or "")):
            return self.answer(403, {"message": f'{plural} is forbidden: User "u" cannot {verb} resource "{plural}"'})
        if is_log:
            assert query["container"] == "node"  # a pod may have others
            return self.follow(name)
        if plural == "pods":
            return self.of_pods(query)
        if plural == "events":
            return self.answer(200, {"items": self.cluster.events_of_jobs()})
        if self.command == "POST":
            assert query["fieldValidation"] == "Strict"
            return self.answer(*self.cluster.create(plural, sent))
        return self.of_one(plural, name, query, sent)

    def of_one(self, plural: str, name: str, query: dict[str, str], sent: Values) -> None:
        if (plural, name) not in self.cluster.objects:
            return self.answer(404, {"message": f'{plural} "{name}" not found'})
        if self.command == "PATCH":
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            return self.answer(*self.cluster.patch(plural, name, sent))
        if self.command == "DELETE":
            assert query["propagationPolicy"] == "Foreground"
            found = copy.deepcopy(self.cluster.objects[plural, name])
            self.cluster.delete(plural, name)
            return self.answer(200, found)
        return self.answer(200, self.cluster.objects[plural, name])

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815 - as the base class calls them

    def of_pods(self, query: dict[str, str]) -> None:
        assert query["labelSelector"].endswith("-name=train"), query
        if self.command == "DELETE":
            self.cluster.kill_pods()
            return self.answer(200, {})
        if "watch" not in query:
            with self.cluster.lock:
                items, place = [copy.deepcopy(pod.value) for pod in self.cluster.pods], str(len(self.cluster.events))
            items.sort(key=lambda pod: pod["metadata"]["name"])
            return self.answer(200, {"items": items, "metadata": {"resourceVersion": place}})
        place = int(query["resourceVersion"])
        self.stream()
        end = time.monotonic() + WATCH_SECONDS
        while not self.cluster.over.wait(LOOK_SECONDS) and time.monotonic() < end:
            while place < len(self.cluster.events):
                self.send(json.dumps(self.cluster.events[place]).encode() + b"\n")
                place += 1
        self.send(b'{"type": "ADDED", "obj')  # as a proxy may end a watch
        self.wfile.write(b"0\r\n\r\n")
        return None

    def follow(self, name: str) -> None:
        pod = next((pod for pod in reversed(self.cluster.pods) if pod.name == name), None)
        if pod is None or pod.container is None:
            return self.answer(400, {"message": "container is waiting to start"})
        self.stream()
        with pod.container.log.open("rb") as log:
            while not self.cluster.over.is_set():
                has_ended = pod.container.exit_code() is not None
                if data := log.read():
                    self.send(data)
                elif has_ended:
                    break
                else:
                    time.sleep(LOOK_SECONDS)
        self.wfile.write(b"0\r\n\r\n")
        return None


@contextlib.contextmanager
def serving(cluster: FakeCluster) -> Iterator[dict[str, str]]:
    """Serve a cluster; yields the variables by which the client finds it."""

    class Own(Handler):
        pass

    Own.cluster = cluster

    connections: set[socket.socket] = set()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, address: Any) -> None:
            connections.add(request)
            super().process_request(request, address)

        def shutdown_request(self, request: Any) -> None:
            connections.discard(request)
            super().shutdown_request(request)

        def handle_error(self, *_: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(*_)

    with Server(("127.0.0.1", 0), Own) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        at = f"http://127.0.0.1:{server.server_port}"
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "k", "cluster": {"server": at}}],
            "users": [{"name": "u", "user": {"token": "a token"}}],
        }
        path = cluster.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(configuration))
        try:
            yield {"KUBECONFIG": str(path)}
        finally:
            cluster.over.set()
            cluster.kill_pods()
            server.shutdown()
            thread.join()
            for connection in list(connections):  # that a client keeps for later requests
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
