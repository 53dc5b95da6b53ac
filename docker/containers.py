"""Images and containers where there is no Docker: buildah builds, runc runs, and nothing is left of a container.

A container has what `docker run` gives one: process 1 is the entrypoint, its user is the image's, /dev/shm has 64 MiB
unless it is said otherwise, and its network has a loopback only, or is one that `ip netns` has made.
"""

import contextlib
import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTAINER_SHM = "64m"
RUN_SECONDS = 900.0
OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")
MIRROR = "http://deb.debian.org/debian"


def run(*command: str | Path, seconds: float = RUN_SECONDS, cwd: Path | None = None) -> str:
    """Run a program to its end; return its standard output. Its standard error is ours."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds, cwd=cwd).stdout


def make_root(folder: Path, *, release: str) -> Path:
    """Return a folder with the root file system of a slim Debian, made unless it is there.

    It trusts the authorities that this machine trusts, so that packages can be fetched from inside through the proxy
    of an institution.
    """
    root = folder / release
    if not root.exists():
        making = folder / f"{release}.part"
        shutil.rmtree(making, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=ca-certificates", release, making, MIRROR)
        if OWN_CERTIFICATES.is_dir():
            shutil.copytree(OWN_CERTIFICATES, making / OWN_CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
            run("chroot", making, "env", "--unset=TMPDIR", "update-ca-certificates")  # our TMPDIR does not exist there
        for left in (*(making / "var/cache/apt/archives").glob("*.deb"), *(making / "var/lib/apt/lists").glob("*_*")):
            left.unlink()
        making.rename(root)
    return root


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an image: the instruction that made it, and the bytes that it adds."""

    instruction: str
    size_bytes: int


class Store:
    """A folder of images and containers, apart from the system's own store.

    Args:
        folder: of images, containers and what they need while they run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._storage = folder / "storage"

    def buildah(self, *arguments: str | Path, seconds: float = RUN_SECONDS, cwd: Path | None = None) -> str:
        """Call buildah on these images."""
        where = ("--root", self._storage, "--runroot", self.folder / "run", "--storage-driver", "overlay")
        return run("buildah", *where, *arguments, seconds=seconds, cwd=cwd)

    def has(self, image: str) -> bool:
        """Return whether an image is there."""
        names = [name for one in json.loads(self.buildah("images", "--json")) for name in one.get("names") or ()]
        return image in names

    def import_root(self, root: Path, image: str) -> None:
        """Make an image of a root file system."""
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, root, "/")
        self.buildah("commit", "--quiet", "--rm", "--format", "docker", container, image)

    def build(self, dockerfile: Path, context: Path, *, target: str, image: str, arguments: Mapping[str, str]) -> None:
        """Build a target of a Dockerfile; what was built before and has not changed is taken from the cache."""
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options = ("--isolation", "chroot", "--format", "docker", "--layers", "--target", target, "--tag", image)
        self.buildah("build", *options, *given, "--file", dockerfile, context, seconds=7200.0)

    def config(self, image: str) -> dict[str, Any]:
        """Return the configuration of an image, in Docker's form."""
        return json.loads(self.buildah("inspect", "--type", "image", image))["Docker"]["config"]

    def layers(self, image: str) -> list[Layer]:
        """Return the layers of an image, the lowest first."""
        said = json.loads(self.buildah("inspect", "--type", "image", image))["Docker"]
        known = json.loads((self._storage / "overlay-layers" / "layers.json").read_text())
        sizes = {one["diff-digest"]: one.get("diff-size", 0) for one in known if "diff-digest" in one}
        made = [step["created_by"] for step in said["history"] if not step.get("empty_layer")]
        diffs = said["rootfs"]["diff_ids"]
        made = [*["(base)"] * (len(diffs) - len(made)), *made]
        return [Layer(instruction=text, size_bytes=sizes[diff]) for text, diff in zip(made, diffs, strict=True)]

    @contextlib.contextmanager
    def container(
        self,
        image: str,
        command: Sequence[str],
        *,
        volumes: Mapping[Path, str] | None = None,
        environment: Mapping[str, str] | None = None,
        hosts: Mapping[str, str] | None = None,
        name: str = "",
        network: str = "",
        shm: str = CONTAINER_SHM,
    ) -> Iterator["Container"]:
        """Start a container; at the end of the block it is gone.

        Args:
            image: its name.
            command: what stands behind the image in `docker run`.
            volumes: folders of this machine, and where they are inside.
            environment: variables on top of the image's.
            hosts: addresses by the name of the host.
            name: of the host.
            network: a name of `ip netns`; none has a loopback alone.
            shm: the size of /dev/shm.
        """
        config, identity = self.config(image), f"tfdist-{secrets.token_hex(4)}"
        bundle = self.folder / "bundles" / identity
        bundle.mkdir(parents=True)
        layer = self.buildah("from", "--name", identity, image).strip()
        try:
            known = {"localhost": "127.0.0.1", name or identity: "127.0.0.1", **(hosts or {})}
            lines = [f"{address} {host}" for host, address in known.items()]
            (bundle / "hosts").write_text("\n".join(lines) + "\n")
            mounts = {bundle / "hosts": "/etc/hosts", **(volumes or {})}
            made = specification(
                config,
                command,
                root=self.buildah("mount", layer).strip(),
                environment=environment or {},
                mounts=mounts,
                hostname=name or identity,
                network=network,
                shm=shm,
            )
            (bundle / "config.json").write_text(json.dumps(made))
            container = Container(identity=identity, bundle=bundle, state=self.folder / "runc")
            try:
                yield container
            finally:
                container.remove()
        finally:
            self.buildah("rm", layer)
            shutil.rmtree(bundle)


def specification(
    config: Mapping[str, Any],
    command: Sequence[str],
    *,
    root: str,
    environment: Mapping[str, str],
    mounts: Mapping[Path, str],
    hostname: str,
    network: str,
    shm: str,
) -> dict[str, Any]:
    """Return the configuration for runc: its own proposal, with the settings of the image and of the caller."""
    uid, _, gid = config["User"].partition(":")
    template = json.loads(_proposal())
    process = template["process"]
    process |= {"terminal": False, "args": [*config["Entrypoint"], *command], "cwd": config["WorkingDir"]}
    process["user"] = {"uid": int(uid), "gid": int(gid)}
    variables = {"HOSTNAME": hostname, **environment}
    process["env"] = [*config["Env"], *(f"{name}={value}" for name, value in variables.items())]
    process["capabilities"] = {}
    process["rlimits"] = []  # those of this machine
    template["root"] = {"path": root, "readonly": False}
    template["hostname"] = hostname
    for mount in template["mounts"]:
        if mount["destination"] == "/dev/shm":
            mount["options"] = [*(one for one in mount["options"] if not one.startswith("size=")), f"size={shm}"]
    for source, place in mounts.items():
        template["mounts"].append(
            {"destination": place, "type": "bind", "source": str(source), "options": ["rbind", "rw"]}
        )
    for namespace in template["linux"]["namespaces"]:
        if namespace["type"] == "network" and network:
            namespace["path"] = f"/run/netns/{network}"
    return template


def _proposal() -> str:
    folder = Path(run("mktemp", "--directory").strip())
    try:
        run("runc", "spec", cwd=folder)
        return (folder / "config.json").read_text()
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that was made; `start` runs its command.

    Attributes:
        identity: its name.
        bundle: what runc reads.
        state: where runc keeps what it knows.
    """

    identity: str
    bundle: Path
    state: Path

    def start(self) -> "subprocess.Popen[str]":
        """Start the command as process 1; return runc, which ends when it does, with its exit code."""
        command = self._runc("run", "--bundle", str(self.bundle), self.identity)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *, seconds: float = RUN_SECONDS) -> tuple[int, str]:
        """Run the command to its end; return its exit code and all that it wrote."""
        process = self.start()
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.signal("KILL")
            output, _ = process.communicate()
            raise AssertionError(f"not done within {seconds:g} s:\n{output[-3000:]}") from None
        return process.returncode, output

    def execute(self, *command: str) -> tuple[int, str]:
        """Run another command inside, as `docker exec` does; return its exit code and what it wrote."""
        done = subprocess.run(
            self._runc("exec", self.identity, *command), capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def signal(self, name: str) -> None:
        """Send a signal to process 1, as `docker stop` does."""
        subprocess.run(self._runc("kill", self.identity, name), check=False, timeout=30)

    def remove(self) -> None:
        """End the processes of the container, and delete it."""
        subprocess.run(self._runc("delete", "--force", self.identity), check=False, timeout=60)

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self.state), *arguments]
