"""Build an image with buildah on a debootstrapped Debian, run it with runc, and print the results.

    make docker-test              as root, on a machine with: apt-get install buildah debootstrap runc iproute2
    make docker-test TARGET=gpu   the image `gpu`, here without a GPU; it takes 15 GB of disk

A failed check ends it with code 1. The base, the layers and Horovod are kept in --folder for the next time.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from containers import RUN_SECONDS, Container, Store, make_root, run
from try_gpus import accuracy

ROOT = Path(__file__).parents[1]
RELEASE = "bookworm"
BASE = "localhost/tfdist-base:latest"
PROGRAMS = ("buildah", "debootstrap", "runc", "ip")
UID = 1000
SAVED = 143  # ended by SIGTERM, after saving
ELASTIC = ("tfdist", "run", "--strategy", "multi-worker", "-n", "2", "--max-restarts", "1", "--verbose")

SIGNAL_WORKERS = """
import psutil, signal, sys
for process in psutil.process_iter():
    if any(word.endswith("jobs/process/script_worker.py") for word in process.cmdline()):
        process.send_signal(signal.Signals[sys.argv[1]])
"""


class Built(NamedTuple):
    """A built image, and its folder."""

    store: Store
    target: str

    @property
    def image(self) -> str:
        return f"localhost/tfdist:{self.target}"

    def container(self, command: Sequence[str], **options: Any) -> contextlib.AbstractContextManager[Container]:
        """Start a container of the image, as `Store.container` does."""
        return self.store.container(self.image, command, **options)


def main() -> None:
    options = parse()
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid():
        sys.exit(f"missing: {missing or 'root'}. As root: apt-get install buildah debootstrap runc iproute2")
    built = Built(Store(options.folder), options.target)
    build(built)
    checks = [check for name, check in CHECKS.items() if not options.only or name in options.only]
    for check in checks:
        began = time.monotonic()
        said = check(built)
        print(f"| {check.__name__.replace('_', ' ')} | {said} | {time.monotonic() - began:.0f} s |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/tfdist-images"), help="default: %(default)s")
    parser.add_argument("--target", choices=("cpu", "gpu"), default="cpu", help="the image; default: %(default)s")
    parser.add_argument("--only", action="append", choices=CHECKS, help="this check, and others so named")
    return parser.parse_args()


def build(built: Built) -> None:
    """Build the image, and print how long that took and how large its layers are."""
    store = built.store
    store.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if not store.has(BASE):
        store.import_root(make_root(store.folder, release=RELEASE), BASE)
    revision = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    arguments = {"BASE": BASE, "REVISION": revision, "CREATED": created}
    store.build(ROOT / "docker" / "Dockerfile", ROOT, target=built.target, image=built.image, arguments=arguments)
    print(f"\n{created}, revision {revision}: built in {time.monotonic() - began:.0f} s\n\n| layer | MB |\n|---|---|")
    layers = store.layers(built.image)
    for layer in layers:
        if layer.size_bytes > 100_000:
            print(f"| `{' '.join(layer.instruction.split())[:90]}` | {layer.size_bytes / 1e6:.1f} |")
    total = sum(layer.size_bytes for layer in layers)
    print(f"| together | {total / 1e6:.0f} |\n\n| check | seen | took |\n|---|---|---|")


def the_user_is_not_root_and_tini_is_process_1(built: Built) -> str:
    code = "import os; print(os.getuid(), open('/proc/1/comm').read().strip(), os.access('/opt/tfdist', os.W_OK))"
    with built.container(("python", "-c", code)) as container:
        exit_code, output = container.run()
    require(exit_code == 0 and output.split() == [str(UID), "tini", "False"], output)
    return "user 1000, process 1 is tini, /opt/tfdist cannot be written"


def the_doctor_finds_no_problem(built: Built) -> str:
    with built.container(("tfdist", "doctor", "--json")) as container:
        exit_code, output = container.run()
    findings = json.loads(output[output.index("{") :])["findings"]
    problems = [finding for finding in findings if finding["level"] == "problem"]
    require(exit_code == 0 and not problems, json.dumps(problems, indent=1))
    seen = {finding["check"]: finding for finding in findings}
    require(seen["native"]["level"] == "ok" and seen["horovod"]["level"] == "ok", json.dumps(seen, indent=1))
    said = {name: seen[name]["seen"] for name in ("native", "horovod", "gpus")}
    if built.target == "gpu":  # these containers get no GPU
        require("CUDA" in said["gpus"] and "driver" in said["gpus"], said["gpus"])
    return "no problem; " + "; ".join(f"{name}: {text}" for name, text in said.items())


def the_packages_fit_each_other(built: Built) -> str:
    with built.container(("pip", "check")) as container:
        exit_code, output = container.run()
    require(exit_code == 0, output)
    return output.strip()


def the_documented_command_trains(built: Built) -> str:
    command = ("tfdist", "run", "--strategy", "mirrored", "--replicas-per-worker", "2", "strategies/mirrored/train.py")
    with built.container((*command, "--epochs", "5")) as container:
        exit_code, output = container.run()
    require(exit_code == 0 and accuracy(output) > 0.9, output)
    return f"mirrored, two replicas, 5 epochs: test accuracy {accuracy(output):.3f}"


def a_ring_of_two_trains(built: Built) -> str:
    command = ("tfdist", "run", "--strategy", "ring", "-n", "2", "strategies/ring_all_reduce/train.py")
    with built.container((*command, "--epochs", "5")) as container:
        exit_code, output = container.run()
    require(exit_code == 0 and accuracy(output) > 0.9, output)
    return f"Horovod over gloo, 5 epochs: test accuracy {accuracy(output):.3f}"


def a_small_shared_memory_is_named_with_the_flag(built: Built) -> str:
    said = {}
    for size in ("64m", "1g"):
        command = ("tfdist", "run", "--max-restarts", "1", "-m", "this")
        with built.container(command, shm=size) as container:
            exit_code, said[size] = container.run()
        require(exit_code == 0, said[size])
    require("--shm-size=1g" in said["64m"] and "shm" not in said["1g"], str(said))
    return next(line for line in said["64m"].splitlines() if "shm" in line)


def stopping_saves_and_the_next_container_goes_on(built: Built) -> str:
    with volume(built) as backup:
        options = ("--epochs", "100000", "--output", "/backup/run")
        first = steps_until(
            built, backup, (*ELASTIC, *events(1), "strategies/multi_worker_mirrored/train.py", *options)
        )
        saved = any((backup / "run" / "backup").iterdir())
        second = steps_until(
            built, backup, (*ELASTIC, *events(2), "strategies/multi_worker_mirrored/train.py", *options)
        )
    require(saved, "no backup was left")
    require(first == 0 and second > 0, f"resumed from steps {first} and {second}")
    return f"SIGTERM to process 1: exit code {SAVED}, and the next container began at step {second}"


def the_health_check_sees_a_worker_that_stands_still(built: Built) -> str:
    health = ("tfdist", "health", "--stall-seconds", "3")
    with volume(built) as backup:
        plain = ("tfdist", "run", "--strategy", "mirrored", *events(1), "strategies/multi_worker_mirrored/train.py")
        with built.container((*plain, "--epochs", "100000", "--output", "/backup/run"), volumes=at(backup)) as box:
            process = box.start()
            idle = comes(lambda: stepping(backup, 1), process)
            require(idle and box.execute(*health)[0] == 0, "it is not healthy while it trains")
            box.execute("python", "-c", SIGNAL_WORKERS, "SIGSTOP")
            found = comes(lambda: box.execute(*health)[0] == 1, process)
            said = box.execute(*health)[1].strip()
            box.execute("python", "-c", SIGNAL_WORKERS, "SIGCONT")
            healed = comes(lambda: box.execute(*health)[0] == 0, process)
            box.signal("TERM")
            process.communicate(timeout=RUN_SECONDS)
    require(found and healed, f"found: {found}, healed: {healed}, said: {said}")
    return f"exit code 1 while it was stopped ({said}), 0 before and after"


def two_containers_of_the_compose_file_train_one_model(built: Built) -> str:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    addresses = {name: f"10.77.1.{number}" for number, name in enumerate(services, start=1)}
    with contextlib.ExitStack() as stack:
        backup = stack.enter_context(volume(built))
        networks = stack.enter_context(joined(addresses))
        processes = {}
        for name, service in services.items():
            container = stack.enter_context(
                built.container(
                    (*service["command"], "--epochs", "5"),
                    volumes=at(backup),
                    environment=service["environment"],
                    hosts=addresses,
                    name=name,
                    network=networks[name],
                    shm=service["shm_size"].removesuffix("b"),
                )
            )
            processes[name] = container.start()
        outputs = {name: process.communicate(timeout=RUN_SECONDS)[0] for name, process in processes.items()}
        for name, process in processes.items():
            require(process.returncode == 0, f"{name}: {outputs[name]}")
        summary = json.loads((backup / "run" / "summary.json").read_text())
    require(summary["accuracy"] > 0.9 and summary["workers"] == len(services), str(summary))
    return f"two containers, two addresses, 5 epochs: test accuracy {summary['accuracy']:.3f}"


CHECKS: dict[str, Callable[[Built], str]] = {
    "user": the_user_is_not_root_and_tini_is_process_1,
    "doctor": the_doctor_finds_no_problem,
    "packages": the_packages_fit_each_other,
    "mirrored": the_documented_command_trains,
    "ring": a_ring_of_two_trains,
    "shm": a_small_shared_memory_is_named_with_the_flag,
    "stop": stopping_saves_and_the_next_container_goes_on,
    "health": the_health_check_sees_a_worker_that_stands_still,
    "compose": two_containers_of_the_compose_file_train_one_model,
}


def require(holds: bool, seen: str) -> None:
    if not holds:
        raise SystemExit(f"FAILED\n{seen[-6000:]}")


@contextlib.contextmanager
def volume(built: Built) -> Iterator[Path]:
    """A folder that the user of the image may write."""
    folder = built.store.folder / f"volume-{os.getpid()}"
    folder.mkdir()
    os.chown(folder, UID, UID)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def at(backup: Path) -> dict[Path, str]:
    return {backup: "/backup"}


def events(number: int) -> tuple[str, str]:
    return "--event-file", f"/backup/events-{number}"


def stepping(backup: Path, number: int) -> dict[str, int] | None:
    """Return the event that says that all workers step; None before."""
    file = backup / f"events-{number}"
    lines = file.read_text().splitlines() if file.exists() else []
    return next((event for event in map(json.loads, lines) if event["event"] == "stepping"), None)


def steps_until(built: Built, backup: Path, command: tuple[str, ...]) -> int:
    """Start a container, stop it as `docker stop` does when its workers step; return the step that they began at."""
    number = int(next(word for word in command if word.startswith("/backup/events-"))[-1])
    with built.container(command, volumes=at(backup), shm="1g") as container:
        process = container.start()
        stepped = comes(lambda: stepping(backup, number), process)
        container.signal("TERM")
        output, _ = process.communicate(timeout=RUN_SECONDS)
    require(bool(stepped) and process.returncode == SAVED, f"exit code {process.returncode}:\n{output}")
    event = stepping(backup, number)
    return int((event or {}).get("resumed") or 0)


def comes(seen: Callable[[], object], process: "subprocess.Popen[str]", *, seconds: float = RUN_SECONDS) -> bool:
    """Wait until something is seen; return whether it was before the process ended, or the time was up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if seen():
            return True
        time.sleep(0.2)
    return False


@contextlib.contextmanager
def joined(addresses: dict[str, str]) -> Iterator[dict[str, str]]:
    """Two networks that are joined by a cable, by the name of the host that is in it."""
    spaces = {name: f"tfdist-image-{os.getpid()}-{name}" for name in addresses}
    with contextlib.ExitStack() as stack:
        for space in spaces.values():
            run("ip", "netns", "add", space)
            stack.callback(run, "ip", "netns", "delete", space)
        one, other = spaces.values()
        run("ip", "link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other)
        for name, space in spaces.items():
            run("ip", "-n", space, "address", "add", f"{addresses[name]}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run("ip", "-n", space, "link", "set", link, "up")
        yield spaces


if __name__ == "__main__":
    main()
