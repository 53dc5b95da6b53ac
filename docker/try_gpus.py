"""Try tfdist on GPUs: on this machine, in containers, on Kubernetes or under Slurm. Prints a report in Markdown.

    python docker/try_gpus.py docker        paste what it prints into an issue, also when all of it held

It needs nothing but Python and the programs that it calls. The exit code is 1 if something did not hold.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_ACCURACY = 0.9
SECONDS = 1800.0
SHOWN_LINES = 30
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader")


class NotHeldError(Exception):
    """A check did not hold; the text is the report's."""


@dataclass(frozen=True)
class Check:
    """Something to run. `seen` makes of its output what the report says; a `NotHeldError` says why not."""

    name: str
    command: tuple[str, ...]
    seen: Callable[[str], str]
    given: str = ""  # on standard input
    environment: Mapping[str, str] = field(default_factory=dict)
    output: Path | None = None  # where it writes, if not to its own output
    after: tuple[str, ...] = ()  # what is run at the end, whatever has happened
    gpus: int = 1  # it needs so many


def main() -> None:
    options = parse()
    print(f"### tfdist on GPUs: {options.where}\n")
    machine = machines_gpus()
    for name, text in described(options.where, machine):
        print(f"- {name}: {text}")
    failed: list[tuple[str, str]] = []
    count = len(machine) if options.where in ("host", "docker") else 2  # elsewhere the cluster has them
    print("\n| check | held | seen | took |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="tfdist-gpus-", dir=options.folder) as folder:
        for check in CHECKS[options.where](options.image, count, Path(folder)):
            if options.dry_run:
                print(f"| {check.name} | - | `{shlex.join(check.command)}` | - |")
            elif check.gpus > count:
                print(f"| {check.name} | - | it needs {check.gpus} GPUs | - |", flush=True)
            else:
                began = time.monotonic()
                holds, seen, output = tried(check)
                took = time.monotonic() - began
                print(f"| {check.name} | {'yes' if holds else '**no**'} | {seen} | {took:.0f} s |", flush=True)
                failed += [] if holds else [(check.name, output)]
    for name, output in failed:
        lines = output.splitlines()[-SHOWN_LINES:]
        print(f"\n`{name}` ended with:\n\n```\n" + "\n".join(lines) + "\n```")
    sys.exit(1 if failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=CHECKS)
    parser.add_argument("--image", help="the image, or Apptainer's file; default: tfdist:gpu, or tfdist.sif")
    parser.add_argument("--folder", type=Path, help="for files; under Slurm all nodes must see it")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    return parser.parse_args()


def tried(check: Check) -> tuple[bool, str, str]:
    """Whether a check held, what was seen, and its output."""
    environment = {**os.environ, **check.environment}
    try:
        code, output = ran(check.command, environment=environment, given=check.given)
    finally:
        if check.after:
            ran(check.after, environment=environment)
    if check.output is not None and check.output.exists():
        output += check.output.read_text(errors="replace")
    try:
        require(code == 0, f"exit code {code}")
        return True, check.seen(output), output
    except NotHeldError as error:
        return False, str(error), output


def ran(command: Iterable[str], *, environment: Mapping[str, str] | None = None, given: str = "") -> tuple[int, str]:
    """The exit code and the output of a command."""
    try:
        done = subprocess.run(
            list(command),
            cwd=ROOT,
            env=None if environment is None else dict(environment),
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired as error:
        said = error.output or b""
        text = said if isinstance(said, str) else said.decode(errors="replace")
        return 124, f"{text}\nit did not end within {SECONDS:g} s"
    return done.returncode, done.stdout


def machines_gpus() -> list[str]:
    code, output = ran(QUERY)
    return output.splitlines() if code == 0 else []


def described(where: str, gpus: list[str]) -> Iterator[tuple[str, str]]:
    """The lines of the report about the machine."""
    yield "date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    code, revision = ran(("git", "describe", "--always", "--dirty"))
    yield "revision", revision.strip() if code == 0 else "unknown"
    yield "machine", f"{platform.platform()}, {os.cpu_count()} processors"
    yield "GPUs", "; ".join(gpus) if gpus else "none here, or no nvidia-smi"
    program = {
        "docker": ("docker", "--version"),
        "kubernetes": ("kubectl", "version"),
        "slurm": ("sbatch", "--version"),
    }
    if where in program:
        yield program[where][0], "; ".join(ran(program[where])[1].split("\n")).strip("; ")


def doctors_gpus(output: str) -> str:
    """Read the GPUs in a report of `tfdist doctor --json`."""
    begin = output.find("{")
    require(begin >= 0, "no report of the doctor")
    report = json.JSONDecoder().raw_decode(output[begin:])[0]
    found = {finding["check"]: finding for finding in report["findings"]}
    seen = found["gpus"]["seen"]
    require(seen.startswith("TensorFlow can use "), seen)
    problems = [f"{name}: {one['seen']}" for name, one in found.items() if one["level"] == "problem"]
    require(not problems, "; ".join(problems))
    return f"tfdist {report['tfdist']}; {seen}; NCCL {found['nccl']['seen']}; {found['tensorflow']['seen']}"


def require(holds: bool, seen: str) -> None:
    if not holds:
        raise NotHeldError(seen)


def accuracy(output: str) -> float:
    """Return the test accuracy in the summary of a recipe; 0 when there is none."""
    return next((float(line.split()[-1]) for line in output.splitlines() if "test accuracy" in line), 0.0)


def trained(output: str) -> str:
    found = accuracy(output)
    require(found > LEAST_ACCURACY, f"test accuracy {found:.3f}")
    return f"test accuracy {found:.3f}"


def verdict(output: str) -> str:
    """The training, and what the monitor says of it."""
    said = next((line.split("verdict")[1].strip() for line in output.splitlines() if "  verdict" in line), "")
    require(bool(said), "no verdict")
    return f"{trained(output)}; {said}"


def on_this_machine(python: str, gpus: int) -> Iterator[Check]:
    run = (*shlex.split(python), "-m", "tfdist")
    yield Check("tfdist doctor", (*run, "doctor", "--json"), doctors_gpus)
    recipe = ("strategies/mirrored/train.py", "--epochs", "5")
    yield Check("mirrored, all GPUs", (*run, "run", "--strategy", "mirrored", "--monitor", *recipe), verdict)
    workers = ("-n", str(max(gpus, 2)), "--gpus-per-worker", "1", "strategies/multi_worker_mirrored/train.py")
    yield Check(
        "multi-worker, a GPU each",
        (*run, "run", "--strategy", "multi-worker", *workers, "--epochs", "5"),
        trained,
        gpus=2,
    )


def host(image: str | None, gpus: int, folder: Path) -> Iterator[Check]:
    del image
    for check in on_this_machine(sys.executable, gpus):
        output = () if check.command[-1] == "--json" else ("--output", str(folder / check.name.split(",")[0]))
        yield Check(check.name, (*check.command, *output), check.seen, gpus=check.gpus)


def docker(image: str | None, gpus: int, folder: Path) -> Iterator[Check]:
    image = image or "tfdist:gpu"
    inside = f"docker run --rm --gpus all --shm-size=1g {shlex.quote(image)} python"
    yield from on_this_machine(inside, gpus)
    ring = ("-m", "tfdist", "run", "--strategy", "ring", "-n", str(max(gpus, 1)), "strategies/ring_all_reduce/train.py")
    yield Check("ring over NCCL", (*shlex.split(inside), *ring, "--epochs", "5"), trained)
    files = ("-f", "docker/compose.yaml", "-f", "docker/compose.gpu.yaml")
    project = ("docker", "compose", "-p", f"tfdist-try-{os.getpid()}", *files)
    steps = [(*project, "up", "--detach", "--no-build"), (*project, "wait", "worker-0", "worker-1")]
    text = f"{' && '.join(map(shlex.join, steps))}; code=$?; {shlex.join((*project, 'logs', '--no-color'))}; exit $code"
    yield Check(
        "compose.gpu.yaml, two containers",
        ("sh", "-c", text),
        trained,
        environment={"TFDIST_IMAGE": image, "TFDIST_TARGET": "gpu"},
        after=(*project, "down", "--volumes"),
        gpus=2,
    )


def kubernetes(image: str | None, gpus: int, folder: Path) -> Iterator[Check]:
    files = ROOT / "docker" / "kubernetes"
    job = (files / "job.yaml").read_text().replace("image: tfdist:gpu", f"image: {image or 'tfdist:gpu'}")
    parts = [*((files / name).read_text() for name in ("backup.yaml", "service.yaml")), job]
    inside = ("kubectl", "--namespace", f"tfdist-try-{os.getpid()}")
    delete = ("kubectl", "delete", "namespace", inside[-1], "--wait=false", "--ignore-not-found")
    seconds = f"--timeout={SECONDS / 2:.0f}s"
    script = [
        ("kubectl", "create", "namespace", inside[-1]),
        (*inside, "apply", "-f", "-"),
        (*inside, "wait", "--for=condition=complete", "job/train", seconds),
    ]
    logs = (*inside, "logs", "--selector", "batch.kubernetes.io/job-name=train", "--tail=-1", "--prefix")
    pods = (*inside, "get", "pods,events", "--output", "wide")
    steps = " && ".join(map(shlex.join, script))
    text = f"{steps}; code=$?; {shlex.join(logs)}; [ $code = 0 ] || {shlex.join(pods)}; exit $code"
    yield Check("job.yaml, two pods", ("sh", "-c", text), trained, given="\n---\n".join(parts), after=delete)


def slurm(image: str | None, gpus: int, folder: Path) -> Iterator[Check]:
    output = folder / "output"
    command = ("sbatch", "--wait", f"--output={output}", "--time=00:20:00", "docker/slurm/train.sbatch")
    environment = {"TFDIST_IMAGE": str(Path(image or "tfdist.sif").absolute()), "TFDIST_BACKUP": str(folder / "backup")}
    yield Check("train.sbatch, two nodes", command, trained, environment=environment, output=output)


CHECKS: dict[str, Callable[[str | None, int, Path], Iterator[Check]]] = {
    "host": host,
    "docker": docker,
    "kubernetes": kubernetes,
    "slurm": slurm,
}


if __name__ == "__main__":
    main()
