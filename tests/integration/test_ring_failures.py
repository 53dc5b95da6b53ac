"""A ring of three processes of which one is killed, stopped, slow or ends: what the others do, and by when."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.environment import worker_environments

DEADLINE_SECONDS = 150
LOST_AFTER_SECONDS = 12  # and a busy machine answers sooner

# Worker 1 does what it is told after its second epoch; every worker prints what came of it.
SCRIPT = f"""
import os, signal, sys, time
import keras, numpy as np, tfdist

what, rank = sys.argv[1], tfdist.cluster.from_environment().worker_index
strategy = tfdist.strategies.RingStrategy(lost_after_seconds={LOST_AFTER_SECONDS}, timeout_seconds=60)

class Trouble(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if rank == 1 and epoch == 1:
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif what == "stopped":
                print("stops", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            elif what == "slow":
                time.sleep(1.5 * {LOST_AFTER_SECONDS})
            elif what == "ends":
                sys.exit(0)
            elif what == "raises":
                raise ValueError("on purpose")

with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(np.zeros((12, 4)), np.zeros((12, 1)), batch_size=6, epochs=4, verbose=0, callbacks=[Trouble()])
except tfdist.errors.TfdistError as error:
    print(type(error).__name__, error, sep=": ", flush=True)
    sys.exit(7)
print("finished", int(model.optimizer.iterations.numpy()), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its exit code (None if it had to be killed in the end) and what it printed."""

    code: int | None
    output: str


def run(what: str, folder: Path, *, but_for: tuple[int, ...] = ()) -> list[Ended]:
    """Run three workers until all have ended, or all but those who are not expected to."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environments = worker_environments(os.environ, strategy="ring", ports=ports.free_ports(3), replicas_per_worker=1)
    command = [sys.executable, str(script), what]
    with contextlib.ExitStack() as stack:
        started = []
        for index, environment in enumerate(environments):
            log = stack.enter_context((folder / f"{index}.txt").open("w+"))
            light = environment | {"PYTHONPATH": python_path()}
            process = subprocess.Popen(command, env=light, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, log))
        codes: list[int | None] = [None] * 3
        for index, (process, _) in enumerate(started):
            if index not in but_for:
                codes[index] = process.wait(DEADLINE_SECONDS)
        return [Ended(code, (folder / f"{index}.txt").read_text()) for index, code in enumerate(codes)]


def test_a_killed_worker_is_named_by_all_others(tmp_path: Path) -> None:
    workers = run("killed", tmp_path)
    assert [worker.code for worker in workers] == [7, -signal.SIGKILL, 7]
    for worker in (workers[0], workers[2]):
        assert "WorkerLostError: worker" in worker.output
        assert "when the ring broke: worker 1 (127.0.0.1:" in worker.output


def test_a_stopped_worker_is_taken_for_lost(tmp_path: Path) -> None:
    workers = run("stopped", tmp_path, but_for=(1,))
    assert [worker.code for worker in workers] == [7, None, 7]
    assert "stops" in workers[1].output
    for worker in (workers[0], workers[2]):
        assert "when the ring broke: worker 1 (127.0.0.1:" in worker.output
        assert "has not been heard of for" in worker.output


def test_a_slow_worker_is_waited_for(tmp_path: Path) -> None:
    workers = run("slow", tmp_path)
    assert [worker.code for worker in workers] == [0, 0, 0], [worker.output[-2000:] for worker in workers]
    assert all("finished 8" in worker.output for worker in workers)


@pytest.mark.parametrize(("what", "code"), [("ends", 0), ("raises", 1)])
def test_a_worker_that_ends_ends_the_others(what: str, code: int, tmp_path: Path) -> None:
    workers = run(what, tmp_path)
    assert [worker.code for worker in workers] == [7, code, 7]
    for worker in (workers[0], workers[2]):
        assert "worker 1 (127.0.0.1:" in worker.output
        assert "has ended" in worker.output


MISSING = """
import sys
sys.modules["horovod"] = None
import tfdist
try:
    tfdist.strategies.RingStrategy()
except ImportError as error:
    print(type(error).__name__, error, sep=": ")
"""


def run_alone(code: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in one process of a job."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def test_without_horovod_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    (environment,) = worker_environments(os.environ, strategy="ring", ports=ports.free_ports(1), replicas_per_worker=1)
    done = run_alone(MISSING, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()
    assert line.startswith("MissingDependencyError: Horovod is not installed")
    assert line.endswith("tfdist build horovod")


def test_workers_that_do_not_come_are_named(tmp_path: Path) -> None:
    environment, *_ = worker_environments(os.environ, strategy="ring", ports=ports.free_ports(2), replicas_per_worker=1)
    done = run_alone("import tfdist; tfdist.strategies.RingStrategy(timeout_seconds=2)", environment, tmp_path)
    assert done.returncode == 1
    assert f"DeadlineError: worker 1 ({environment['TFDIST_WORKERS'].split(',')[1]}) has not come" in done.stderr
