"""`tfdist.jobs.notebook` from a real kernel, a script and a REPL: results, failures, interrupts, no leftovers."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.agents import alive, environment, says, told, wait_until
from tests.integration.kernels import Kernel, kernel

PRELUDE = """
import os, pathlib, signal, threading, time
import tfdist
from tfdist.jobs import notebook
def me():
    return int(os.environ["TFDIST_WORKER_INDEX"])
def tell(name):
    (pathlib.Path(SHARED) / f".{name}").write_text(str(os.getpid()))
    (pathlib.Path(SHARED) / f".{name}").rename(pathlib.Path(SHARED) / name)
"""

WAITS = """
def waits():
    tell(f"worker-{me()}")
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kernel, Path]]:
    folder = tmp_path_factory.mktemp("kernel")
    with kernel(folder) as one:
        assert not one.run(f"SHARED = {str(folder / 'work')!r}\n{PRELUDE}").error
        yield one, folder


@pytest.fixture
def cells(running: tuple[Kernel, Path]) -> Iterator[Kernel]:
    """The kernel; after the test no process of a job is left, and no file."""
    one, folder = running
    yield one
    wait_until(lambda: not list((folder / "tmp").glob("tfdist-*")), "temporary files are left")
    wait_until(lambda: not psutil.Process(one.pid).children(recursive=True), "processes are left")
    for file in (folder / "work").iterdir():
        file.unlink()


def test_the_result_of_the_chief_and_the_lines_of_all(cells: Kernel) -> None:
    shown = cells.run("""
scale = 3
class Point:
    def __init__(self, x):
        self.x = x
def helper(x):
    return scale * x
def f(x, *, more=0):
    print("begins", flush=True)
    print("to standard error", file=__import__("sys").stderr)
    return Point(helper(x) + more + me())
import functools
point = notebook(functools.partial(f, more=1), 2, workers=3)
isinstance(point, Point), point.x
""")
    assert (shown.error, shown.result) == ("", "(True, 7)")
    assert sorted(shown.out.splitlines()) == [f"[worker {index}] begins" for index in range(3)]
    assert sorted(shown.err.splitlines()) == [f"[worker {index}] to standard error" for index in range(3)]


def test_an_exception_is_shown_with_its_line_and_its_worker(cells: Kernel) -> None:
    shown = cells.run("""
def f():
    if me() == 1:
        raise ValueError("no luck")  # here
    time.sleep(600)
notebook(f, grace_seconds=1.0)
""")
    assert shown.error == "WorkerFailedError"
    assert "worker 1 of 2 failed first" in shown.traceback
    assert 'raise ValueError("no luck")  # here' in shown.traceback
    assert "ValueError: no luck" in shown.traceback
    assert "notebook_worker.py" not in shown.traceback, "frames that are no user's"
    assert "notebook_job.py" not in shown.traceback, "frames that are no user's"
    assert "[worker 1] ValueError: no luck" in shown.err


def test_a_worker_that_is_killed(cells: Kernel) -> None:
    cells.run("""
def f():
    if me() == 1 and os.environ.get("TFDIST_RESTARTS", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if "TFDIST_RESTARTS" not in os.environ:
        time.sleep(600)
    return os.environ["TFDIST_RESTARTS"]
""")
    shown = cells.run("notebook(f, grace_seconds=1.0)")
    assert "worker 1 of 2 failed first" in shown.traceback
    assert "killed by SIGKILL" in shown.traceback
    assert shown.error == "WorkerFailedError"
    shown = cells.run("notebook(f, max_restarts=1)")
    assert shown.result == "'1'"
    assert says(shown.err, "tfdist: worker 1 ", "SIGKILL")


def test_an_interrupt_ends_all_workers_and_the_kernel_lives(cells: Kernel, running: tuple[Kernel, Path]) -> None:
    cells.run(WAITS)
    cell = cells.begin("notebook(waits, grace_seconds=5.0)")
    pids = [int(told(running[1] / "work", f"worker-{index}")) for index in range(2)]
    cells.manager.interrupt_kernel()
    shown = cells.end(cell)
    assert shown.error == "KeyboardInterrupt"
    assert not any(map(alive, pids))
    assert cells.run("notebook(me, workers=1)").result == "0"


def test_workers_that_hang_again_and_again(cells: Kernel) -> None:
    cells.run("def f(): os.kill(os.getpid(), signal.SIGSTOP)")
    shown = cells.run("notebook(f, max_restarts=1, hang_seconds=2.0)")
    assert shown.error == "WorkerFailedError"
    assert "1 of 1 times" in shown.traceback
    assert "SIGSTOP" in shown.traceback or "stopped" in shown.traceback, shown.traceback


def test_a_deadline(cells: Kernel, running: tuple[Kernel, Path]) -> None:
    cells.run(WAITS)
    shown = cells.run("notebook(waits, timeout_seconds=1.0, grace_seconds=1.0)")
    assert shown.error == "DeadlineError"
    assert says(shown.traceback, "waits ", "1 s (timeout_seconds)")


def test_all_of_much_output_arrives(cells: Kernel) -> None:
    shown = cells.run("""
def f():
    for number in range(20_000):
        print("line", number)
    return "done"
notebook(f)
""")
    assert shown.result == "'done'"
    for worker in range(2):
        own = re.findall(rf"^\[worker {worker}\] line (\d+)$", shown.out, re.MULTILINE)
        assert own == [str(number) for number in range(20_000)]


def test_a_bar_moves_in_a_display_of_its_own(cells: Kernel, running: tuple[Kernel, Path]) -> None:
    """The chief waits until its half line is shown; the front end sees each state, and the whole line in the stream."""
    cell = cells.begin("""
def f():
    if me() == 0:
        for number in range(3):
            print(f"\\rstep {number}", end="", flush=True)
            while not (pathlib.Path(SHARED) / f"seen-{number}").exists():
                time.sleep(0.01)
        print()
notebook(f)
""")
    states: list[str] = []
    while len(states) < 3:
        message = cells.client.get_iopub_msg(timeout=200)
        if message["msg_type"] in ("display_data", "update_display_data"):
            states.append(message["content"]["data"]["text/plain"])
            (running[1] / "work" / f"seen-{len(states) - 1}").touch()
    shown = cells.end(cell)
    assert states == [f"[worker 0] step {number}" for number in range(3)]
    assert shown.out == "[worker 0] step 2\n"


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("lock = threading.Lock()\ndef f(): return lock\nnotebook(f)", ("variable 'lock', of type _thread.lock",)),
        ("def g(): return f()\nnotebook(g)", ("'lock' of the function f", "type _thread.lock", " g ")),
        ("notebook(print, {'a': [1, (i for i in ())]})", ("['a'][1], of type generator",)),
        (
            "def h(): return {'model': threading.Lock()}\nnotebook(h, workers=1)",
            ("result['model'] of h", "_thread.lock"),
        ),
        ("import sys\nnotebook(sys.exit, workers=1)", ("worker 0 ", "exit ", "code 0")),
        ("notebook(f, 1)", ("f() ", "1 arguments")),
        ("notebook(f())", ("cannot be called",)),
        ("notebook(print, strategy='mirrored')", ("workers=1", "replicas_per_worker=2")),
        ("notebook(print, worker=3)", ("worker is not an option", "env, timeout_seconds")),
        ("notebook(print, env={'A': 1})", ("{'A': '1'}",)),
    ],
)
def test_what_cannot_be_is_told(cells: Kernel, code: str, facts: tuple[str, ...]) -> None:
    traceback = cells.run(code).traceback
    assert says(traceback, *facts), traceback


TRAIN = """
import keras
import numpy as np
import tensorflow as tf
tf.ones(3) + 1  # TensorFlow has started in the kernel
@tf.function
def absolute(x):  # AutoGraph needs the lines of the cell
    if tf.reduce_sum(x) > 0:
        return x
    else:
        return -x
def train(epochs):
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(1).normal(size=(40, 4)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, x.sum(1), batch_size=16, epochs=epochs, verbose=2, shuffle=False)
    return type(strategy).__name__, float(absolute(-tf.ones(2))[0]), history.history["loss"]
"""


def test_fit_on_the_ring_of_a_kernel_that_has_loaded_tensorflow(cells: Kernel) -> None:
    assert not cells.run(TRAIN, seconds=200).error
    shown = cells.run("kind, one, loss = notebook(train, 2)\nkind, one, loss[1] < loss[0]", seconds=200)
    assert (shown.error, shown.result) == ("", "('RingStrategy', 1.0, True)")
    assert "[worker 0] Epoch 2/2" in shown.out
    assert "[worker 1] Epoch" not in shown.out
    # copies of tensors and models would start TensorFlow before the strategy of the function
    for made in ("tf.constant(['a'])", "keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])"):
        traceback = cells.run(f"made = {made}\ndef f(): return made\nnotebook(f)", seconds=200).traceback
        assert says(traceback, "variable 'made', of type", "UnsupportedError"), traceback


def test_the_end_of_the_kernel_ends_all(tmp_path: Path) -> None:
    with kernel(tmp_path) as one:
        one.run(f"SHARED = {str(tmp_path / 'work')!r}\n{PRELUDE}{WAITS}")
        one.begin("notebook(waits)")
        pids = [int(told(tmp_path / "work", f"worker-{index}")) for index in range(2)]
        os.kill(one.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)), "workers outlive the kernel")
        wait_until(lambda: not list((tmp_path / "tmp").glob("tfdist-*")), "temporary files are left")


SCRIPT = """
from tfdist.jobs import notebook
import os
factor = 21
def f(x):
    print("in a worker")
    return factor * x, os.environ["TFDIST_WORKER_INDEX"]
print("before")
print(notebook(f, 2))
"""


FAILS = """
from tfdist.jobs import notebook
try:
    notebook(lambda: 1 / 0, workers=1)
except RuntimeError as error:
    lines = str(error).splitlines()
    print(lines[0].partition(",")[0], lines[-1].strip(), sep=", ")
"""


def test_from_a_script_and_from_a_repl(shared: Path) -> None:
    script = shared / "script.py"
    script.write_text(SCRIPT)
    options = {"capture_output": True, "text": True, "timeout": 200, "env": environment(shared), "cwd": shared}
    done = subprocess.run([sys.executable, script], **options)  # type: ignore[call-overload]
    assert done.stdout.splitlines()[0] == "before"
    assert sorted(done.stdout.splitlines()[1:3]) == ["[worker 0] in a worker", "[worker 1] in a worker"]
    assert done.stdout.splitlines()[3] == "(42, '0')"
    fails = subprocess.run([sys.executable, "-c", FAILS], **options)  # type: ignore[call-overload]
    assert says(fails.stdout, "worker 0 of 1", ", ZeroDivisionError: "), fails.stderr
    lines = SCRIPT.replace('"WORKER_INDEX"]\n', '"WORKER_INDEX"]\n\n')
    repl = subprocess.run([sys.executable, "-i"], input=lines.replace("\nprint(", "\n\nprint(", 1), **options)  # type: ignore[call-overload]
    assert "(42, '0')" in repl.stdout, repl.stderr
    assert not list((shared.parent / "tmp").iterdir())
