"""Nodes of a real Kubernetes whose pods are processes, with the documented work of a kubelet.

It registers nodes and renews their leases, starts the pods that the scheduler has bound to them, and reports their
status. It ends deleted pods after their grace period, and serves logs to the API server. In the pods' network, names
resolve by the endpoints of headless services, as with a cluster's DNS. There are no images: a pod with the command
`python` runs this interpreter.
"""

import base64
import contextlib
import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.pods import Container, Network

LOOK_SECONDS = 0.3
LEASE_SECONDS = 5.0
KILL_SECONDS = 60.0
MESSAGE_BYTES = 2048

Values = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Running:
    """A pod on one of the nodes."""

    pod: Values
    address: str
    container: Container
    began: str
    ended: bool = False
    asked_at: float | None = None
    killed: set[str] = field(default_factory=set)


class Nodes:
    """Nodes, and the pods on them.

    Args:
        api: a client of the API server that may do everything.
        library: the client library.
        network: of the pods.
        folder: for logs and what pods mount.
        variables: that an image would have.
    """

    def __init__(self, api: Any, library: Any, network: Network, folder: Path, variables: dict[str, str]) -> None:
        self._core = library.CoreV1Api(api)
        self._leases = library.CoordinationV1Api(api)
        self._slices = library.DiscoveryV1Api(api)
        self._failure = library.ApiException
        self._network = network
        self._folder = folder
        self.variables = variables
        self.names: list[str] = []
        self.running: dict[str, Running] = {}
        self._addresses = iter(range(1, 1 << 14))
        self._called: dict[str, str] = {}
        self._over = threading.Event()
        self.lock = threading.RLock()

    @contextlib.contextmanager
    def serving(self, capacities: dict[str, Values]) -> Iterator[None]:
        """Register nodes, and do what kubelets do; afterwards all pods are ended."""
        with self._logs() as port:
            for name, capacity in capacities.items():
                self._register(name, capacity, port)
            self.names = list(capacities)
            threads = [threading.Thread(target=self._repeat, args=args) for args in (
                (self._look, LOOK_SECONDS), (self._renew, LEASE_SECONDS))]  # fmt: skip
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._over.set()
                for thread in threads:
                    thread.join(KILL_SECONDS)
                for one in self.running.values():
                    one.container.signal(signal.SIGKILL)
                    one.container.wait(KILL_SECONDS)

    def pod(self, job: str, index: int) -> Running | None:
        """Return the pod of an index that runs; None if none does."""
        with self.lock:
            for one in self.running.values():
                metadata = one.pod["metadata"]
                found = (metadata.get("labels", {}).get("batch.kubernetes.io/job-name"), index_of(one.pod))
                if found == (job, index) and not one.ended:
                    return one
        return None

    def _repeat(self, what: Any, seconds: float) -> None:
        while not self._over.wait(seconds):
            try:
                what()
            except Exception as error:  # noqa: BLE001 - the next time may go well, and what does not is seen by who waits
                print(f"kubelet: {str(error)[:400]}", file=sys.stderr, flush=True)

    def _register(self, name: str, capacity: Values, port: int) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
        made = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "one"}},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                "conditions": [{**ready, "lastTransitionTime": now()}],
            },
        }
        self._core.create_node(made)
        # without the time of a first renewal the controller sees none of those that follow
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": precise_now()}
        lease = {"metadata": {"name": name}, "spec": spec}
        deadline = time.monotonic() + KILL_SECONDS
        while True:
            try:
                self._leases.create_namespaced_lease("kube-node-lease", lease)
                return
            except self._failure:  # the server makes the namespace after its start
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS)

    def _renew(self) -> None:
        spec = {"renewTime": precise_now()}
        for name in self.names:
            self._leases.patch_namespaced_lease(name, "kube-node-lease", {"spec": spec})

    def _look(self) -> None:
        here = {}
        for pod in listed(self._core.list_pod_for_all_namespaces):
            if pod["spec"].get("nodeName") in self.names:
                here[pod["metadata"]["uid"]] = pod
        with self.lock:
            for uid, pod in here.items():
                if uid in self.running:
                    self.running[uid].pod = pod
                elif "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Pending":
                    self._start(uid, pod)
            for uid, one in list(self.running.items()):
                self._attend(one, is_there=uid in here)
                if uid not in here and one.ended:
                    del self.running[uid]
        self._call()

    def _start(self, uid: str, pod: Values) -> None:
        (spec,) = pod["spec"]["containers"]
        number = next(self._addresses)
        address = f"10.79.{number >> 8}.{number & 255}"
        environ = {one["name"]: self._value_of(one, pod) for one in spec.get("env", ())}
        words, mounts = list(spec["args"]), {one["name"]: one["mountPath"] for one in spec.get("volumeMounts", ())}
        for volume in pod["spec"].get("volumes", ()):
            if "configMap" in volume:
                place = self._folder / uid / volume["name"]
                place.mkdir(parents=True)
                for file, text in self._found("config_map", volume["configMap"]["name"], pod)["data"].items():
                    (place / file).write_text(text)
                words = [word.replace(mounts[volume["name"]], str(place)) for word in words]
        words[0] = {"python": sys.executable}[words[0]]
        self._network.add(address)
        name = pod["spec"]["hostname"]
        self.running[uid] = one = Running(
            pod,
            address,
            Container(
                self._network.space,
                name,
                words,
                variables={**environ, "HOSTNAME": name, **self.variables},
                folder=self._folder,
                log=self._folder / f"{pod['metadata']['name']}.log",
            ),
            now(),
        )
        self._tell(one, "Running", {"running": {"startedAt": one.began}})

    def _value_of(self, variable: Values, pod: Values) -> str:
        if "valueFrom" not in variable:
            return str(variable.get("value", ""))
        if secret := variable["valueFrom"].get("secretKeyRef"):
            data = self._found("secret", secret["name"], pod)["data"]
            return base64.b64decode(data[secret["key"]]).decode()
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        kind, _, key = path.removeprefix("metadata.").removesuffix("']").partition("['")
        return str(pod["metadata"][kind][key])

    def _found(self, kind: str, name: str, pod: Values) -> Values:
        read = getattr(self._core, f"read_namespaced_{kind}")
        found: Values = json.loads(read(name, pod["metadata"]["namespace"], _preload_content=False).data)
        return found

    def _attend(self, one: Running, *, is_there: bool) -> None:
        """End a pod that is deleted, and tell of one that has ended."""
        metadata, code = one.pod["metadata"], one.container.exit_code()
        if code is None and (not is_there or "deletionTimestamp" in metadata):
            grace = 0 if not is_there else metadata["deletionGracePeriodSeconds"]
            if one.asked_at is None:
                one.asked_at = time.monotonic()
                one.container.signal(signal.SIGTERM)
            if time.monotonic() - one.asked_at >= grace:
                one.container.signal(signal.SIGKILL)
            return
        if code is None:
            return
        if not one.ended:
            end = {"exitCode": code, "reason": "Error" if code else "Completed"}
            end |= {"startedAt": one.began, "finishedAt": now()}
            if code:  # as terminationMessagePolicy asks for
                end["message"] = one.container.log.read_bytes()[-MESSAGE_BYTES:].decode(errors="replace")
            if is_there:
                self._tell(one, "Failed" if code else "Succeeded", {"terminated": end})
            one.ended = True
            self._network.remove(one.address)
        if is_there and "deletionTimestamp" in metadata:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            with contextlib.suppress(self._failure):  # somebody else did
                self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"], body=body)

    def _tell(self, one: Running, phase: str, state: Values) -> None:
        metadata, runs = one.pod["metadata"], phase == "Running"
        (spec,) = one.pod["spec"]["containers"]
        container = {"name": spec["name"], "image": spec["image"], "imageID": "", "restartCount": 0, "state": state}
        container |= {"ready": runs, "started": runs, "containerID": f"process://{metadata['uid']}"}
        status = {
            "phase": phase,
            "conditions": [
                {"type": kind, "status": str(runs), "lastTransitionTime": now()}
                for kind in ("Ready", "ContainersReady")
            ],
            "containerStatuses": [container],
            "hostIP": "127.0.0.1",
            "podIP": one.address,
            "podIPs": [{"ip": one.address}],
            "startTime": one.began,
        }
        merges = {"_content_type": "application/strategic-merge-patch+json"}  # conditions of others stay
        self._core.patch_namespaced_pod_status(metadata["name"], metadata["namespace"], {"status": status}, **merges)

    def _call(self) -> None:
        """Let names mean what the endpoints of headless services say."""
        names = {}
        for one in listed(self._slices.list_endpoint_slice_for_all_namespaces):
            service = one["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            for endpoint in one.get("endpoints") or ():
                if endpoint.get("hostname"):
                    names[f"{endpoint['hostname']}.{service}"] = endpoint["addresses"][0]
        with self.lock:  # a pod knows its own name
            names |= {one.pod["spec"]["hostname"]: one.address for one in self.running.values() if not one.ended}
        if names != self._called:
            self._network.call(names)
            self._called = names

    @contextlib.contextmanager
    def _logs(self) -> Iterator[int]:
        """Serve logs as a kubelet does; yields the port."""
        key, certificate = self._folder / "kubelet.key", self._folder / "kubelet.crt"
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=node"]
        files = ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
        subprocess.run(["openssl", *words, *files], check=True, capture_output=True)

        class Own(_LogHandler):
            nodes = self

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
            server.daemon_threads = True
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join(KILL_SECONDS)

    def log_of(self, namespace: str, name: str) -> Running | None:
        with self.lock:
            for one in self.running.values():
                metadata = one.pod["metadata"]
                if (metadata["namespace"], metadata["name"]) == (namespace, name):
                    return one
        return None


class _LogHandler(BaseHTTPRequestHandler):
    """Answers /containerLogs/NAMESPACE/POD/CONTAINER."""

    protocol_version = "HTTP/1.1"
    nodes: Nodes

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        follows = parse_qs(url.query).get("follow") == ["true"]
        _, kind, namespace, name, _ = url.path.split("/")
        one = self.nodes.log_of(namespace, name)
        if kind != "containerLogs" or one is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with one.container.log.open("rb") as log:
            while True:
                has_ended = one.container.exit_code() is not None
                if data := log.read():
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                elif has_ended or not follows:
                    break
                else:
                    time.sleep(LOOK_SECONDS)
        self.wfile.write(b"0\r\n\r\n")


def index_of(pod: Values) -> int | None:
    index = pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index")
    return None if index is None else int(index)


def listed(what: Any) -> list[Values]:
    found: list[Values] = json.loads(what(_preload_content=False).data)["items"]
    return found
