"""Searches on real processes: trials that pause, die, are cloned; a searcher that is interrupted and killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.integration.forks import ENTRY, Forks, Heard
from tfdist.jobs.placement.local_placement import Child
from tfdist.jobs.placement.worker_factory import forked
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.processes.fork_server import ForkServer
from tfdist.processes.job_resources import guarded
from tfdist.tune.search import trial_slots
from tfdist.tune.search.search_history import Clone, Decision, End, Event, History, Resume, Start, Status
from tfdist.tune.search.search_loop import Loop
from tfdist.tune.search.search_run import go_on, opened, run
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.search_space import parse_space
from tfdist.tune.search.trial_jobs import Slot, slots_of
from tfdist.tune.search.trial_slots import TrialSlots, trial_folder

SCRIPT = """
import os, signal
import keras, numpy as np
import tfdist

hp = tfdist.search.parameters()
how = hp.Choice("how", ["lives", "fails", "is killed once"])
if how == "fails":
    raise ValueError("no such how")
folder = tfdist.search.folder()
with open(folder / "processes", "a") as file:
    file.write(f"{os.getpid()} ")


class Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if how == "is killed once" and epoch == 2 and not (folder / "mark").exists():
            (folder / "mark").touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
source = np.random.default_rng(0)
x, y = source.normal(size=(24, 4)).astype("float32"), source.normal(size=(24, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1.0, sampling="log")), "mse")
model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[Killed(), *tfdist.search.callbacks()])
np.savez(folder / "state.npz", *model.get_weights(), *[one.numpy() for one in model.optimizer.variables])
(folder / "lr").write_text(str(float(model.optimizer.learning_rate)))
"""
LIVES: dict[str, Any] = {"how": "lives", "lr": 0.125}


class Scripted:
    """Decides what a test says: each trial goes through its decisions, and clones wait for all paused trials."""

    def __init__(self, plan: dict[int, list[Decision]]) -> None:
        self._plan = {number: list(decisions) for number, decisions in plan.items()}

    def decide(self, history: History) -> list[Decision]:
        clones = [left[0] for left in self._plan.values() if left and isinstance(left[0], Clone)]
        for number, left in self._plan.items():
            trial = history.trials.get(number)
            if not left or not history.free or (trial is not None and trial.status is not Status.PAUSED):
                continue
            if isinstance(left[0], Clone) or (number == 0 and clones and isinstance(left[0], Resume)):
                continue
            return [left.pop(0)]
        if clones and not history.running:
            for left in self._plan.values():
                if left and isinstance(left[0], Clone):
                    left.pop(0)
            return clones
        return []


def state(folder: Path, trial: int) -> list[bytes]:
    with np.load(trial_folder(folder, trial) / "state.npz") as found:
        return [found[name].tobytes() for name in found.files]


class Lent:
    """The part of `ForkServer` that a search needs; it lends the server of all tests, which stays."""

    def __init__(self, server: ForkServer) -> None:
        self.pid, self.process, self.wait, self._server = server.pid, server.process, server.wait, server

    def start(self, environment: Mapping[str, str], *, folder: str, modules: Sequence[str], ends: str) -> "Lent":
        return self

    def spawn(self, argv: Sequence[str], environment: Mapping[str, str], **streams: int) -> int:
        return self._server.spawn([argv[0], ENTRY, os.getcwd(), "0", *argv[1:]], environment, **streams)

    def close(self) -> None:
        """Nothing: others use it."""


@pytest.fixture
def _trials_in_forks(forking: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_slots, "ForkServer", Lent(forking.server))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_trials_in_forks")
def test_trials_pause_die_and_are_cloned(tmp_path: Path) -> None:
    script, other = tmp_path / "train.py", {**LIVES, "lr": 0.5}
    script.write_text(SCRIPT)
    plan: dict[int, list[Decision]] = {
        0: [Start(0, LIVES, 1), Resume(0, 2), Resume(0, 3)],
        1: [Start(1, LIVES, 3)],
        2: [Start(2, other, 1), Clone(2, 0, LIVES), Resume(2, 3)],
        3: [Start(3, other, 1), Clone(3, 0, {**LIVES, "lr": 0.25}), Resume(3, 3)],
        4: [Start(4, {**LIVES, "how": "fails"}, 3)],
        5: [Start(5, {**LIVES, "how": "is killed once"}, 3)],
    }
    space = parse_space(["lr=log:1e-3:1", "how=lives,fails,is killed once"])
    settings = SearchSettings(target=str(script), space=space, metric="loss", epochs=3)
    history, journal = settings.make_history(2), list[Event]()

    def processes(trial: int) -> list[int]:
        return [int(word) for word in (trial_folder(tmp_path, trial) / "processes").read_text().split()]

    def write(event: Event) -> None:
        journal.append(event)
        if event == End(0, "paused") and history.trials[0].until == 2:  # kill the process that waits
            (waiting,) = processes(0)
            os.kill(waiting, signal.SIGKILL)
            os.waitid(os.P_PID, waiting, os.WEXITED | os.WNOWAIT)

    with guarded("search") as guard:
        slots = TrialSlots(settings, tmp_path, (Slot(),) * 2, guard)
        try:
            Loop(Scripted(plan), slots, history, write=write).run()
        finally:
            slots.close()
    assert [len(processes(number)) for number in (0, 1, 2, 3, 5)] == [2, 1, 2, 2, 2]
    causes = {number: one.cause for number, one in history.trials.items()}
    assert [one.status.value for one in history.trials.values()] == [*["finished"] * 4, "failed", "finished"], causes
    assert "ValueError: no such how" in causes[4]
    assert "SIGKILL" in causes[5]
    never_paused = state(tmp_path, 1)
    assert state(tmp_path, 0) == never_paused  # paused, and resumed by its process; paused again, and by its backup
    assert state(tmp_path, 2) == never_paused  # weights and slots of the donor
    assert state(tmp_path, 5) == never_paused  # killed, and gone on from its backup
    assert state(tmp_path, 3) != never_paused
    rates = [float((trial_folder(tmp_path, number) / "lr").read_text()) for number in (0, 3)]
    assert rates == [0.125, 0.25]  # the optimizer's state has the donor's; the script's counts
    assert list(history.trials[0].scores) == [1, 2, 3]


OF_TWO = """
import os, signal
import keras, numpy as np
import tfdist

hp = tfdist.search.parameters()
mark = tfdist.search.folder() / "mark"
is_killed = hp.Boolean("is_killed")


class Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if is_killed and epoch == 1 and os.environ["TFDIST_WORKER_INDEX"] == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
with tfdist.strategies.from_environment().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(hp.Float("lr", 0.1, 1.0)), "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[Killed(), *tfdist.search.callbacks()])
if os.environ["TFDIST_WORKER_INDEX"] == "0":
    state = [*model.get_weights(), *[one.numpy() for one in model.optimizer.variables]]
    np.savez(tfdist.search.folder() / "state.npz", *state)
"""


@pytest.fixture
def _jobs_in_forks(forking: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials that are jobs be forks, and their workers forks of these."""

    def started(spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        assert spec.argv[:4] == (sys.executable, "-m", "tfdist", "run"), spec.argv
        words = (sys.executable, ENTRY, os.getcwd(), "0", *spec.argv[2:])
        return forked(forking.server, replace(spec, argv=words), environment, streams)

    monkeypatch.setattr(trial_slots, "started_anew", started)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_jobs_in_forks")
def test_trials_of_two_workers_pause_and_one_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OF_TWO)
    plan: dict[int, list[Decision]] = {
        0: [Start(0, {"is_killed": False, "lr": 0.25}, 1), Resume(0, 2)],
        1: [Start(1, {"is_killed": True, "lr": 0.25}, 2)],
    }
    space = parse_space(["lr=linear:0.1:1", "is_killed=bool"])
    settings = SearchSettings(
        target=str(script), space=space, metric="loss", epochs=2, workers_per_trial=2, strategy="multi-worker"
    )
    history, journal = settings.make_history(1), list[Event]()
    with guarded("search") as guard:
        slots = TrialSlots(settings, tmp_path, slots_of(settings, 1, {}, 2), guard)
        try:
            Loop(Scripted(plan), slots, history, write=journal.append).run()
        finally:
            slots.close()
    logs = [(trial_folder(tmp_path, number) / "output.log").read_text() for number in range(2)]
    assert [one.status.value for one in history.trials.values()] == ["finished"] * 2, "\n".join(logs)
    assert [one.how for one in journal if isinstance(one, End)].count("died") == 1
    assert [list(one.scores) for one in history.trials.values()] == [[1, 2]] * 2
    assert state(tmp_path, 0) == state(tmp_path, 1)


LOOP = """
import time
import tfdist

hp = tfdist.search.parameters()
x = hp.Float("x", 0.0, 1.0)
place = tfdist.search.folder() / "epoch"
done = int(place.read_text()) if place.exists() else 0
for epoch in range(done + 1, 10):
    time.sleep(0.1)
    place.write_text(str(epoch))
    tfdist.search.report({"loss": x + 1 / epoch}, step=epoch)
"""


def trials_alive(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("TFDIST_SEARCH_TRIAL", ""):
                found.append(process.pid)
    return found


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_an_interrupted_and_a_killed_search_go_on(forking: Forks, drawing: Forks, tmp_path: Path) -> None:
    """Interrupt a user's process, which forks trials itself; the others are forks, as their trials are."""
    (tmp_path / "train.py").write_text(LOOP)
    folder, journal = tmp_path / "found", tmp_path / "found" / "journal.jsonl"
    options = ["--metric", "loss", "--trials", "9", "--epochs", "9", "--slots", "2", "--output", str(folder)]
    resume = ("tfdist", "search", "resume", str(folder))

    def ended_by(number: signal.Signals, process: "Heard | subprocess.Popen[str]") -> str:
        before = len(journal.read_bytes().splitlines()) if journal.exists() else 0
        try:
            wait_for(lambda: journal.exists() and len(journal.read_bytes().splitlines()) >= before + 8)
            process.send_signal(number)
            output = process.communicate(timeout=300)[0]
        finally:
            process.kill()
            process.communicate(timeout=300)
        wait_for(lambda: not trials_alive(folder))
        return output

    command = [sys.executable, "-m", "tfdist", "search", *options, "train.py"]
    interrupted = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert "tfdist search resume" in ended_by(signal.SIGINT, interrupted)
    assert interrupted.returncode == 130
    killed = forking.heard(*resume, cwd=tmp_path)
    ended_by(signal.SIGKILL, killed)
    assert killed.returncode == -signal.SIGKILL
    before = journal.read_text().splitlines()

    with forking.start(*resume, cwd=tmp_path) as process:
        process.wait(600)
    assert process.returncode == 0, process.written
    assert journal.read_text().splitlines()[: len(before) - 1] == before[:-1]  # the last line may have been cut
    found = opened(folder)
    assert len(found.history.trials) == 9
    assert not found.history.with_status(Status.RUNNING, Status.DEAD, Status.FAILED)
    assert found.history.rungs.keys() == {1, 3, 9}
    assert found.best is not None
    assert found.best.number == min(found.history.trials.values(), key=lambda one: one.values["x"]).number

    def shown(*words: str) -> str:
        with drawing.start("tfdist", "search", *words, cwd=tmp_path) as process:
            output = process.communicate()[0].decode()
        assert process.returncode == 0, process.written
        return output

    best = json.loads(shown("best", str(folder), "--json", "-"))
    assert best["values"]["x"] == found.best.values["x"]
    assert found.history.value(found.best.scores[best["epoch"]]) == best["value"]
    assert found.history.value(found.best.scores[best["epochs"]]) == best["last"]
    output = [
        "--parquet",
        "a.parquet",
        "--plot",
        "a.png",
        "--tensorboard",
        "boards",
        "--mlflow",
        str(tmp_path / "runs"),
    ]
    shown("show", str(folder), "--all", "--json", "a.json", *output)
    rows = json.loads((tmp_path / "a.json").read_text())
    assert [row["trial"] for row in rows] == list(range(9))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "boards").glob("trial-*/events*"))) == 9
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "a.parquet").num_rows == 9
    assert list((tmp_path / "runs").rglob("metrics"))


@pytest.mark.usefixtures("_trials_in_forks")
def test_a_function_is_searched_from_a_program(tmp_path: Path) -> None:
    def train(hp: Any) -> float:
        return (hp.Float("x", 0.0, 1.0) - 0.5) ** 2

    folder = tmp_path / "found"
    found = run(train, {"x": [0.0, 0.5, 1.0]}, folder=folder, metric="loss", scheduler="grid", slots=2)
    assert found.best is not None
    assert (found.best.values, found.history.value(found.best.best)) == ({"x": 0.5}, 0.0)
    assert [row["status"] for row in found.table()] == ["finished"] * 3
    assert found.table() == go_on(folder).table()  # nothing is left to do


def test_the_recipe_is_searched_with_values_by_tpe(drawing: Forks, tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "strategies" / "search" / "train.py"
    space = ["--space", "learning_rate=log:1e-4:1e-2", "--space", "units=32,64"]
    options = ["--metric", "val_accuracy", "--sampler", "tpe", "--trials", "3", "--epochs", "2", "--eta", "2"]
    with drawing.start("tfdist", "search", *options, *space, str(recipe), cwd=tmp_path) as process:
        process.communicate(600)
    assert process.returncode == 0, process.written
    found = opened(tmp_path / "search")
    assert found.best is not None
    assert found.best.step == 2
    assert found.history.value(found.best.best) > 0.5
    assert {one.values.keys() >= {"learning_rate", "units", "dropout"} for one in found.history.trials.values()} == {
        True
    }
    finished = trial_folder(found.folder, found.history.with_status(Status.FINISHED)[0].number)
    assert "test accuracy" in (finished / "output.log").read_text()
