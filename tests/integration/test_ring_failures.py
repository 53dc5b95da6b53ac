"""A ring of three processes of which one is killed, stopped, slow or ends: what the others do, and by when."""

import contextlib
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.agents import says
from tests.integration.forks import Forks
from tfdist.cluster import ports
from tfdist.cluster.cluster_values import Cluster
from tfdist.collectives.backends import horovod_job
from tfdist.collectives.rendezvous_store import Store, StoreServer
from tfdist.errors import WorkerLostError
from tfdist.jobs.connecting.tcp_joining import own_addresses
from tfdist.testing.pool import worker_environments

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
    """The end of a worker: its exit code (None if it had to be killed in the end) and its output."""

    code: int | None
    output: str


def run(forking: Forks, what: str, folder: Path, *, but_for: tuple[int, ...] = ()) -> list[Ended]:
    """Run three workers until all have ended, or all but those who are not expected to."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environments = worker_environments({}, strategy="ring", ports=ports.free_ports(3), replicas_per_worker=1)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(forking.start(str(script), what, **one)) for one in environments]
        codes: list[int | None] = [
            None if index in but_for else process.wait() for index, process in enumerate(started)
        ]
        for index in but_for:
            started[index].kill()  # who is stopped hears of nothing else
        return [Ended(code, process.written) for code, process in zip(codes, started, strict=True)]


def test_a_killed_worker_is_named_by_all_others(forking: Forks, tmp_path: Path) -> None:
    workers = run(forking, "killed", tmp_path)
    assert [worker.code for worker in workers] == [7, -signal.SIGKILL, 7]
    for worker in (workers[0], workers[2]):
        assert says(worker.output, "WorkerLostError: worker", "ring broke: worker 1 (127.0.0.1:")


def test_a_stopped_worker_is_taken_for_lost(forking: Forks, tmp_path: Path) -> None:
    workers = run(forking, "stopped", tmp_path, but_for=(1,))
    assert [worker.code for worker in workers] == [7, None, 7]
    assert "stops" in workers[1].output
    for worker in (workers[0], workers[2]):
        assert says(worker.output, "ring broke: worker 1 (127.0.0.1:", "not been heard of")


def test_a_slow_worker_is_waited_for(forking: Forks, tmp_path: Path) -> None:
    workers = run(forking, "slow", tmp_path)
    assert [worker.code for worker in workers] == [0, 0, 0], [worker.output[-2000:] for worker in workers]
    assert all("finished 8" in worker.output for worker in workers)


@pytest.mark.parametrize(("what", "code"), [("ends", 0), ("raises", 1)])
def test_a_worker_that_ends_ends_the_others(what: str, code: int, forking: Forks, tmp_path: Path) -> None:
    workers = run(forking, what, tmp_path)
    assert [worker.code for worker in workers] == [7, code, 7]
    for worker in (workers[0], workers[2]):
        assert "worker 1 (127.0.0.1:" in worker.output
        assert "has ended" in worker.output


MISSING = """
import sys
sys.modules |= {name: None for name in sys.modules if name.partition(".")[0] == "horovod"} | {"horovod": None}
import tfdist
try:
    tfdist.strategies.RingStrategy()
except ImportError as error:
    print(type(error).__name__, error, sep=": ")
"""


def run_alone(forking: Forks, code: str, environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
    """Run Python code in one process of a job; return how it ended, and what it printed."""
    (folder / "alone.py").write_text(code)
    with forking.start(str(folder / "alone.py"), **environment) as process:
        out, err = process.communicate()
        return process.wait(), out.decode(), err.decode()


def test_without_horovod_one_line_says_how_to_get_it(forking: Forks, tmp_path: Path) -> None:
    (environment,) = worker_environments({}, strategy="ring", ports=ports.free_ports(1), replicas_per_worker=1)
    code, out, err = run_alone(forking, MISSING, environment, tmp_path)
    assert code == 0, err
    (line,) = out.strip().splitlines()
    assert line.startswith("MissingDependencyError: Horovod is not")
    assert line.endswith("tfdist build horovod")


def test_workers_that_do_not_come_are_named(forking: Forks, tmp_path: Path) -> None:
    environment, *_ = worker_environments({}, strategy="ring", ports=ports.free_ports(2), replicas_per_worker=1)
    alone = "import tfdist; tfdist.strategies.RingStrategy(timeout_seconds=2)"
    code, _, err = run_alone(forking, alone, environment, tmp_path)
    assert code == 1
    assert f"DeadlineError: worker 1 ({environment['TFDIST_WORKERS'].split(',')[1]})" in err


def test_a_chief_that_ends_while_others_wait_for_one_more_is_named() -> None:
    addresses = tuple(f"127.0.0.1:{port}" for port in ports.free_ports(3))
    cluster = Cluster(num_workers=3, worker_index=1, addresses=addresses)
    server = StoreServer("127.0.0.1", 0)
    store = Store(server.address)
    store.put("here", "0", b"")

    def end_chief() -> None:
        store.wait("here", "1", 60)
        server.close()

    chief = threading.Thread(target=end_chief)
    chief.start()
    with pytest.raises(WorkerLostError) as lost:
        horovod_job._check_in(cluster, 60, server.address)
    chief.join()
    assert str(lost.value).startswith(f"worker 0 ({server.address})")


def test_other_hosts_find_the_store_of_a_host_whose_name_leads_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    (facing,) = own_addresses(["192.0.2.1"]) or ["127.0.1.1"]
    assert horovod_job._own_address() == facing
