"""Helpers of the tests of `tfdist run`: run the agent, read what its workers report, check that nothing is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.integration import light
from tests.integration.forks import Fork, Forks
from tfdist.variables import TRIALS

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 800

# what every script may use: who it is, and how to tell and to wait
PRELUDE = """
import os, pathlib, signal, subprocess, sys, time
ME = int(os.environ.get("TFDIST_WORKER_INDEX", 0))
SHARED = pathlib.Path(os.environ["SHARED"])
def tell(name, text="x"):
    temporary = SHARED / f".{name}"
    temporary.write_text(text)
    temporary.rename(SHARED / name)
def wait_for(test):
    deadline = time.monotonic() + 150
    while not test():
        if time.monotonic() > deadline:
            sys.exit("nobody told")
        time.sleep(0.01)
def wait_told(name):
    wait_for((SHARED / name).exists)
"""


def environment(shared: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TFDIST_", "NO_COLOR")) and k != "TF_CONFIG"}
    return {
        **kept,
        "PYTHONPATH": light.python_path(ROOT),
        "SHARED": str(shared),
        "TMPDIR": str(shared.parent / "tmp"),
        TRIALS.name: "again",
        **more,
    }


@contextmanager
def agent(*arguments: object, shared: Path, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the agent; whatever happens in the block, it is gone afterwards, and no temporary file is left."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(shared), **options}
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "run", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        # a test run in the background of a shell ignores SIGINT, and would hand that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        # what it started may outlive it after a failure, and hold its output open
        process.communicate(timeout=60)
    no_file_is_left(shared.parent / "tmp")


@contextmanager
def forked_agent(forking: Forks, *arguments: object, shared: Path, env: Mapping[str, str]) -> Iterator[Fork]:
    """Run the agent as `agent` does, in a fork whose workers are forks as well."""
    with forking.start("tfdist", "run", *map(str, arguments), **env) as process:
        yield process
    no_file_is_left(shared.parent / "tmp")


def no_file_is_left(folder: Path) -> None:
    """Wait until a folder is empty: what is killed is cleared up behind the job."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left := [name for _, folders, files in os.walk(folder) for name in (*folders, *files)]:
        assert time.monotonic() < deadline, f"temporary files are left: {left}"
        time.sleep(0.01)


def finished(*arguments: object, shared: Path, **options: object) -> tuple[int, str, str]:
    """Run the agent to its end; return exit code, standard output and standard error."""
    with agent(*arguments, shared=shared, **options) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, (out or b"").decode(), (err or b"").decode()


# a trial that needs no TensorFlow: its first worker reports where it is
TRIAL = """
import tfdist
x = tfdist.search.parameters().Float("x", 0.0, 1.0)
print("at", os.environ["TFDIST_WORKERS"].partition(":")[0], os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
tfdist.search.report({"loss": x}, step=1)
"""


def searched(*options: object, shared: Path, **more: object) -> list[str]:
    """Search on a launcher to the end; return what the trials have printed, one after another."""
    folder = shared / "search"
    given = ("--metric", "loss", "--scheduler", "random", "--epochs", 1, "--output", folder, *options)
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "search", *map(str, given)],
        **{"env": environment(shared), **more},  # type: ignore[call-overload]
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    logs = [path.read_text() for path in sorted(folder.glob("trials/*/output.log"))]
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(logs)
    return logs


def wait_until(test: Callable[[], object], otherwise: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def told(shared: Path, name: str) -> str:
    wait_until((shared / name).exists, f"nobody told {name}")
    return (shared / name).read_text()


def own_lines(text: str, worker: int | str) -> list[str]:
    prefix = f"[worker {worker}] " if isinstance(worker, int) else f"[{worker}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def says(text: str, *facts: str) -> bool:
    """Return whether some line of a text has all of these facts: names, numbers, signals, a few words."""
    return any(all(fact in line for fact in facts) for line in text.splitlines())


def another_host(folder: Path) -> Path:
    """Return a program that stands for ssh: it runs the command here, elsewhere, and with little of the environment.

    A host of which a file says that it is gone cannot be reached.
    """
    path = folder / "another host"
    path.write_text(
        "#!/bin/sh\n"
        'echo "Welcome to $1"\n'
        '[ -e "$SHARED/$1 is gone" ] && exit 255\n'
        f"cd / && exec env -i PYTHONPATH='{light.python_path(ROOT)}' "
        'HOME="$HOME" PATH="$PATH" SHARED="$SHARED" TMPDIR="${TMPDIR:-/tmp}" LANG=C.UTF-8 sh -c "$2"\n'
    )
    path.chmod(0o755)
    return path
