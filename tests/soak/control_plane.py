"""A real Kubernetes on this machine's loopback: etcd, an API server, the controllers and the scheduler.

Clients are identified by a token, and their rights are those of RBAC.
"""

import base64
import contextlib
import json
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from tfdist.cluster.ports import free_ports

SECONDS = 180.0
_USERS = {"admin": "system:masters", "system:kube-scheduler": ""}


class Control:
    """A client that controls a cluster through its API server.

    Args:
        folder: for what it keeps.
        port: of the API server.
        tokens: by user.
    """

    def __init__(self, folder: Path, port: int, tokens: dict[str, str]) -> None:
        self.folder = folder
        self._at = f"https://127.0.0.1:{port}"
        self._certificate = folder / "certificates" / "apiserver.crt"
        self._tokens = tokens

    def configuration(self, user: str, *, token: str | None = None, namespace: str = "default") -> Path:
        """Return the configuration file, as for kubectl, of a user or of a token."""
        certificate = base64.b64encode(self._certificate.read_bytes()).decode()
        context = {"cluster": "real", "user": user, "namespace": namespace}
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "contexts": [{"name": "real", "context": context}],
            "clusters": [{"name": "real", "cluster": {"server": self._at, "certificate-authority-data": certificate}}],
            "users": [{"name": user, "user": {"token": token or self._tokens[user]}}],
        }
        path = self.folder / f"config-{user.replace(':', '-')}-{namespace}"
        path.write_text(yaml.safe_dump(made))
        return path

    def client(self, user: str = "admin") -> Any:
        """Return a client of the API server."""
        return kubernetes.config.new_client_from_config(str(self.configuration(user)))

    def asked(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Ask the API server something as its admin; return the status and what it says."""
        request = urllib.request.Request(
            f"{self._at}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._tokens['admin']}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=str(self._certificate))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def version(self) -> str:
        """Return the version that the API server reports."""
        found = kubernetes.client.VersionApi(self.client()).get_code()
        return f"Kubernetes {found.git_version}, built with {found.go_version}"


@contextlib.contextmanager
def control_plane(folder: Path, binaries: Path, etcd: Path) -> Iterator[Control]:
    """Start all of it, and wait until it is ready; afterwards all has ended.

    Args:
        folder: for what it keeps.
        binaries: a folder with kube-apiserver, kube-controller-manager and kube-scheduler.
        etcd: the program.
    """
    port, clients, peers = free_ports(3)
    tokens = {user: secrets.token_hex(16) for user in _USERS}
    lines = [f'{token},{user},{user},"{_USERS[user]}"\n' for user, token in tokens.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    for words in (("genrsa", "-out", "sa.key", "2048"), ("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    control = Control(folder, port, tokens)
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: object) -> None:
            stack.enter_context(_service(folder / f"{name}.log", [str(word) for word in words]))

        own, others = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
        start(
            "etcd", etcd, f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={own}",
            f"--advertise-client-urls={own}", f"--listen-peer-urls={others}", f"--initial-advertise-peer-urls={others}",
            f"--initial-cluster=default={others}", "--unsafe-no-fsync",
        )  # fmt: skip
        start(
            "apiserver", binaries / "kube-apiserver", f"--etcd-servers={own}", "--bind-address=127.0.0.1",
            f"--secure-port={port}", f"--cert-dir={control.folder / 'certificates'}", "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'sa.pub'}", "--endpoint-reconciler-type=none",
            f"--service-account-signing-key-file={folder / 'sa.key'}", "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        )  # fmt: skip
        _ready(control)
        for name, user, more in (
            ("kube-controller-manager", "admin", (
                f"--service-account-private-key-file={folder / 'sa.key'}", "--node-monitor-grace-period=3m")),
            ("kube-scheduler", "system:kube-scheduler", ()),
        ):  # fmt: skip
            start(name, binaries / name, f"--kubeconfig={control.configuration(user)}", "--leader-elect=false",
                  "--secure-port=0", *more)  # fmt: skip
        yield control


def install(api: Any, paths: Sequence[Path]) -> list[str]:
    """Create definitions of resources (CRDs), and wait until they are served; return their names."""
    extensions, names = kubernetes.client.ApiextensionsV1Api(api), []
    for path in paths:
        for made in yaml.safe_load_all(path.read_text()):
            if made and made["kind"] == "CustomResourceDefinition":
                extensions.create_custom_resource_definition(made, _preload_content=False)
                names.append(made["metadata"]["name"])

    def is_served(name: str) -> bool:
        found = json.loads(extensions.read_custom_resource_definition(name, _preload_content=False).data)
        held = {one["type"] for one in found["status"].get("conditions", ()) if one["status"] == "True"}
        return "Established" in held

    deadline = time.monotonic() + SECONDS
    while not all(map(is_served, names)):
        assert time.monotonic() < deadline, names
        time.sleep(0.2)
    time.sleep(1)  # the last server of the name takes a moment more
    return names


def _ready(control: Control) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(OSError):
            if control.asked("/readyz")[0] == 200:
                return
        if time.monotonic() > deadline:
            raise TimeoutError((control.folder / "apiserver.log").read_text()[-3000:])
        time.sleep(0.5)


@contextlib.contextmanager
def _service(log: Path, words: list[str]) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
