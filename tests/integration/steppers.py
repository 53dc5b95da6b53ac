"""A script of workers that step together without TensorFlow, and keep what they have done as exactly as a backup does.

Its state is the list of the steps that were done; the end shows each of them once, or what was lost or repeated.
"""

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.integration.agents import agent, environment, forked_agent, told, wait_until
from tests.integration.forks import Fork, Forks
from tfdist import cache

STEPPER = '''
import json, math, socket
from tfdist.monitor.phases import Activity, Kind
from tfdist.monitor.process_clock import step_clock

START = int(os.environ.get("TFDIST_RESTARTS", 0))
ADDRESSES = [address.split(":") for address in os.environ["TFDIST_WORKERS"].split(",")]
STATE = pathlib.Path(os.environ.get("TFDIST_MEMORY_DIR", SHARED), "state.json")
STATE.parent.mkdir(exist_ok=True)
clock = step_clock()
reporter = clock.reporter

def leave(number, frame):
    if not reporter.leaves():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

def connected():
    host, port = ADDRESSES[0]
    if ME == 0:
        with socket.create_server((host, int(port))) as server:
            return [server.accept()[0] for _ in ADDRESSES[1:]]
    deadline = time.monotonic() + 150
    while True:
        try:
            return [socket.create_connection((host, int(port)))]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)

def meet(peers):
    """Wait for all; return whether it is enough, which worker 0 alone decides, so that all end after the same step."""
    if ME:
        peers[0].sendall(b".")
    for peer in peers:
        word = peer.recv(1)
        if not word:
            raise ConnectionResetError("a peer is gone")
    if ME:
        return word == b"!"
    enough = (SHARED / "enough").exists()
    for peer in peers:
        peer.sendall(b"!" if enough else b".")
    return enough

def save(steps):
    if ME == 0:
        with clock.doing(Activity.SAVING):
            temporary = STATE.with_suffix(".new")
            temporary.write_text(json.dumps(steps))
            temporary.rename(STATE)
            reporter.saved(len(steps))

def train(count, before=lambda tick: None, inside=lambda tick: None):
    """Do steps until there are so many, or a file `enough`; `before` and `inside` get the number of every tick."""
    signal.signal(signal.SIGTERM, leave)
    steps = json.loads(STATE.read_text()) if STATE.exists() else []
    peers = connected()
    reporter.resumed(len(steps), "memory")
    tell(f"pid {START} {ME}", str(os.getpid()))
    tick = 0

    def halt():
        save(steps)
        tell(f"halted {START} {ME}", str(len(steps)))

    clock.before_halt = halt
    enough = False
    while len(steps) < count and not enough:
        before(tick)
        clock.begin(Kind.TRAIN)
        inside(tick)
        enough = meet(peers)
        steps.append(len(steps))
        reporter.done(len(steps))
        clock.end()
        save(steps)
        tick += 1
        time.sleep(0.002)
    clock.training_ends()
    tell(f"done {ME}", json.dumps(steps))
'''


def options(shared: Path, faults: Sequence[dict[str, Any]] = (), **more: str) -> dict[str, Any]:
    """Return the arguments of `agent` for a stepper: faults, and a cache folder of its own, with the kept ops."""
    kept, own = cache.folder(os.environ) / "ops", shared / "cache"
    kept.mkdir(parents=True, exist_ok=True)
    own.mkdir(exist_ok=True)
    with suppress(FileExistsError):  # several jobs of a test
        (own / "ops").symlink_to(kept)
    variables = {"TFDIST_FAULTS": json.dumps(list(faults)), "TFDIST_CACHE_DIR": str(own), **more}
    return {"shared": shared, "env": environment(shared, **variables)}


def happened(shared: Path) -> list[dict[str, Any]]:
    """Return the events in the event file."""
    path = shared / "events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_event(shared: Path, event: str, **content: object) -> dict[str, Any]:
    """Wait until the event file has an event with this content."""

    def found() -> list[dict[str, Any]]:
        expected = {"event": event, **content}
        return [one for one in happened(shared) if expected.items() <= one.items()]

    wait_until(found, f"no {event} {content}")
    return found()[0]


def fault(kind: str, worker: int, step: int, restart: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "worker": worker, "at": "step", "step": step, "restart": restart, **more}


@contextmanager
def job(
    *arguments: object, shared: Path, faults: Sequence[dict[str, Any]] = (), forking: Forks | None = None
) -> Iterator["subprocess.Popen[bytes] | Fork"]:
    """Run a job with an event file, in forks where there are some; whatever happens in the block, it ends with it."""
    run = agent if forking is None else functools.partial(forked_agent, forking)
    with run("--event-file", shared / "events", *arguments, **options(shared, faults)) as process:
        yield process
    job_id = happened(shared)[0]["job"]
    wait_until(lambda: not list(Path("/dev/shm").glob(f"tfdist-job-{job_id}*")), "memory is left")
    wait_until(lambda: not list((shared / "cache").glob("jobs/*.sock")), "a socket is left")


def done(shared: Path, worker: int = 0) -> list[int]:
    """Return the steps that a worker has done in the end."""
    steps: list[int] = json.loads(told(shared, f"done {worker}"))
    return steps
