"""`tfdist run --standby`: a second set of workers, which has done all but its first step, takes over."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.agents import DEADLINE_SECONDS, alive, another_host, wait_until
from tests.integration.forks import Forks
from tests.integration.steppers import STEPPER, done, happened, job, wait_for_event
from tests.integration.test_run_recovers import run

WAITING = (
    """
import tensorflow as tf
"""
    + STEPPER
    + """
print("begun", START, flush=True)
tell(f"begun {START} {ME}", str(os.getpid()))
reporter.stand_by()
tell(f"joined {START} {ME}", "x")
def wait_long(name):
    deadline = time.monotonic() + 200
    while not (SHARED / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
def before(tick):
    if tick == 3 and START < 2:
        wait_long(f"go {START}")
        if ME == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if tick == 3 and START == 2:
        wait_long("end")
train(20, before=before)
"""
)
OPTIONS = ("-n", 2, "--max-restarts", 3, "--hang-seconds", 100, "--standby")


def begun(shared: Path, start: int) -> list[int]:
    """Wait until both workers of a start have begun, which a process has to import TensorFlow for; return them."""
    files = [shared / f"begun {start} {worker}" for worker in range(2)]
    deadline = time.monotonic() + 150
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def joined(shared: Path, start: int) -> bool:
    return any((shared / f"joined {start} {worker}").exists() for worker in range(2))


def test_it_takes_over_and_shows_what_it_wrote_only_then(forking, script, shared):  # type: ignore[no-untyped-def]
    with job(*OPTIONS, script(WAITING), shared=shared, forking=forking) as process:
        for start in range(2):
            wait_for_event(shared, "stepping", start=start)
            begun(shared, start + 1)
            assert not joined(shared, start + 1)
            (shared / f"go {start}").write_text("x")
        wait_for_event(shared, "stepping", start=2)
        left = begun(shared, 3)
        (shared / "end").write_text("x")
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, err
        assert done(shared) == list(range(20))
        assert not joined(shared, 3)
        said = sorted(line for line in out.splitlines() if b"begun" in line)
        assert said == sorted(b"[worker %d] begun %d" % (worker, start) for worker in range(2) for start in range(3))
        wait_until(lambda: not any(map(alive, left)), "workers in reserve are left")


def test_one_of_it_that_dies_costs_the_reserve_alone_and_none_outlives_the_agent(forking, script, shared):  # type: ignore[no-untyped-def]
    with job(*OPTIONS, script(WAITING), shared=shared, forking=forking) as process:
        wait_for_event(shared, "stepping", start=0)
        first, second = begun(shared, 1)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive(second), "its other worker is left")
        for worker in range(2):
            (shared / f"begun 1 {worker}").unlink()
        (shared / "go 0").write_text("x")
        begun(shared, 2)  # the workers of start 1 were started when they were needed, and have a reserve themselves
        (shared / "go 1").write_text("x")
        wait_for_event(shared, "stepping", start=2)
        assert [event["event"] for event in happened(shared)].count("failed") == 2
        left = begun(shared, 3)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(map(alive, left)), "workers in reserve outlive the agent")


TRAINING = """
import json, os, pathlib, sys, time
import keras
import numpy as np
import tfdist
from tfdist.training.replica import current_step

SHARED, START = pathlib.Path(sys.argv[1]), int(os.environ["TFDIST_RESTARTS"])

class WaitsForTheReserve(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        waits = sys.argv[2] == "killed" and START == 0 and self.model.optimizer.iterations.numpy() == 2
        deadline = time.monotonic() + 120
        while waits and not all((SHARED / f"made 1 {w}").exists() for w in range(2)):
            assert time.monotonic() < deadline, "the reserve has not made its step"
            time.sleep(0.01)

def loss(y_true, y_pred):
    if current_step.current() is not None:  # called while the step of a replica is made
        (SHARED / f"made {START} {os.environ['TFDIST_WORKER_INDEX']}").touch()
    return keras.losses.mean_squared_error(y_true, y_pred)

strategy = tfdist.strategies.from_environment()
keras.utils.set_random_seed(3)
with strategy.scope():
    layers = [keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss)
x = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
log = keras.callbacks.CSVLogger(f"{sys.argv[2]} {os.environ['TFDIST_WORKER_INDEX']}.csv")
backup = tfdist.callbacks.BackupAndRestore(f"backup {sys.argv[2]}")
history = model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[log, WaitsForTheReserve(), backup])
result = {"history": history.history, "weights": [w.tolist() for w in model.get_weights()]}
if os.environ["TFDIST_WORKER_INDEX"] == "0":
    pathlib.Path(f"{sys.argv[2]}.json").write_text(json.dumps(result))
"""


@pytest.mark.readme("tfdist run --strategy ring -n 2 --max-restarts 3 --standby train.py")
def test_fit_goes_on_in_it_as_if_nothing_had_been(forking: Forks, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    options = ["--strategy", "ring", "-n", "2", "--max-restarts", "2"]
    run(forking, tmp_path, *options, "train.py", str(tmp_path), "never")
    kill = {"kind": "kill", "worker": 1, "at": "step", "step": 4, "restart": 0}
    for file in tmp_path.glob("made *"):
        file.unlink()
    events = run(forking, tmp_path, *options, "--standby", "train.py", str(tmp_path), "killed", faults=[kill])
    assert [event["event"] for event in events].count("failed") == 1
    for name in ("{}.json", "{} 0.csv"):
        killed, never = ((tmp_path / name.format(which)).read_text() for which in ("killed", "never"))
        assert killed == never
    assert len(json.loads((tmp_path / "killed.json").read_text())["history"]["loss"]) == 3


LOADED = """
import mmap
(SHARED / f"_pywrap_tensorflow {ME}").write_bytes(bytes(1))  # as if it were loaded: what is forked has it
with open(SHARED / f"_pywrap_tensorflow {ME}", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""


def test_on_two_hosts_it_takes_over_and_where_a_host_is_lost_others_are_started(script, shared):  # type: ignore[no-untyped-def]
    text = WAITING.replace("\nimport tensorflow as tf\n", LOADED).replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"')
    text = text.replace("os.kill(os.getpid(), ", "os.kill(os.getpid() if START == 0 else os.getppid(), ")
    assert text.count("mmap") > 1
    hosts = ("--hosts", "one=127.0.0.1,two=127.0.0.2", "--ssh-command", f"'{another_host(shared)}'")
    with job(*hosts, *OPTIONS[2:], script(text), shared=shared) as process:
        for start in range(2):
            wait_for_event(shared, "stepping", start=start)
            begun(shared, start + 1)
            assert not joined(shared, start + 1)
            if start == 1:  # the reserve dies with the host
                for worker in range(2):
                    (shared / f"begun 2 {worker}").unlink()
            (shared / f"go {start}").write_text("x")
        wait_for_event(shared, "stepping", start=2)
        begun(shared, 2)
        (shared / "end").write_text("x")
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(20))
    said = sorted(line for line in out.splitlines() if b"begun" in line)
    assert said == sorted(b"[worker %d] begun %d" % (worker, start) for worker in range(2) for start in range(3))
    failures = [event["text"] for event in happened(shared) if event["event"] == "failed"]
    assert "connection to host two" in failures[1]
