"""Exporters' common ground: what is asked for by name, updates of a job, and a queue that nobody waits for."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refused
from tests.simulated_steps import simulated
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.jobs.process.exporter_process import Exporting
from tfdist.monitor.exporters import exporter
from tfdist.monitor.exporters import exporting as outlets
from tfdist.monitor.exporters.exporter import Point, Update
from tfdist.monitor.exporters.exporting import PATIENCE_SECONDS, Feed, Outlet
from tfdist.monitor.verdict.step_parts import timeline
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView


@pytest.mark.parametrize("text", ["", "tensor", "Prometheus:1", "prometheus:x", "prometheus:0", "prometheus:65536", 3])
def test_what_is_no_exporter_is_refused(text: str) -> None:
    with refused(ConfigError, name="exporters", received=text):
        exporter.parse(text)


def test_exporters_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["tensorboard:a b/ü", "prometheus:9500", "mlflow:http://host:5000"]
    assert [str(one) for one in exporter.parse_all(texts)] == texts
    with refused(ConfigError, name="exporters", received="mlflow", mentions=["['mlflow']"]):
        exporter.parse_all("mlflow")
    with refused(ConfigError, name="exporters", received="mlflow", mentions=["twice"]):
        exporter.parse_all(["mlflow", "mlflow"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(MissingDependencyError, name="mlflow", mentions=["pip install 'tfdist[mlflow]'"]):
        exporter.parse_all(["mlflow"])


class Job:
    """A job that is looked at: what it is at each look is set by hand."""

    def __init__(self, workers: int = 2, steps: int = 200) -> None:
        self.whole = timeline(simulated(workers, steps))
        self.timeline = None
        self.now = 0.0
        views = tuple(WorkerView(worker=one, step=1, parts={}) for one in range(workers))
        self.seen: Snapshot | None = Snapshot(job="a1", start=0, time=0.0, is_running=True, workers=views)

    def look(self) -> Snapshot | None:
        return self.seen

    def does(self, steps: int) -> None:
        self.timeline = self.whole.only(slice(max(0, steps - 60), steps))  # a ring that keeps 60

    def feed(self, **options) -> Feed:  # type: ignore[no-untyped-def]
        return Feed(self, **{"now": lambda: self.now, "pace": lambda elapsed: 0.0, **options})  # type: ignore[arg-type]


def test_every_step_is_in_one_point() -> None:
    job = Job()
    feed, points = job.feed(every=25), []
    for done in (*range(10, 150, 10), 150):
        job.does(done)
        update = feed.look(is_last=done == 150)
        assert update is not None
        points += update.points
    np.testing.assert_array_equal(np.concatenate([one.steps.steps for one in points]), range(150))
    assert [len(one.steps.steps) for one in points] == [30, 30, 30, 30, 30]
    assert [one.step for one in points] == [29, 59, 89, 119, 149]
    ends = [one.time for one in points]
    assert ends == sorted(ends)
    job.does(150)
    rest = job.feed(after=139).look(is_last=True)
    assert rest is not None
    assert [one.steps.steps.tolist() for one in rest.points] == [list(range(140, 150))]


def test_points_are_not_closer_than_the_pace() -> None:
    job = Job()
    feed = job.feed(pace=lambda elapsed: 5.0)
    counts = []
    for done in range(10, 130, 10):
        job.does(done)
        job.now += 1.0
        update = feed.look()
        assert update is not None
        counts.append(len(update.points))
    assert counts == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]


def test_a_start_after_a_failure_goes_on_where_its_backup_was() -> None:
    job = Job()
    feed = job.feed()
    job.does(50)
    feed.look()
    assert job.seen is not None
    workers = tuple(replace(one, resumed=40) for one in job.seen.workers)
    job.seen = replace(job.seen, start=1, workers=workers, events=({"event": "failed"},))
    job.does(20)
    update = feed.look()
    assert update is not None
    assert ([one.step for one in update.points], len(update.events)) == ([59], 1)
    again = feed.look()
    assert again is not None
    assert (again.points, again.events) == ((), ())


def test_a_worker_that_has_not_recorded_yet_is_waited_for_but_not_for_ever() -> None:
    job = Job()
    feed = job.feed()
    job.timeline = timeline(simulated(1, 20))
    first = feed.look()
    assert first is not None
    assert first.points == ()
    job.does(30)
    both = feed.look()
    assert both is not None
    assert [one.steps.ranks for one in both.points] == [(0, 1)]
    alone = Job()
    feed = alone.feed()
    alone.timeline = timeline(simulated(1, 20))
    feed.look()
    alone.now += PATIENCE_SECONDS + 1
    late = feed.look()
    assert late is not None
    assert [one.steps.ranks for one in late.points] == [(0,)]


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_end_of_a_job_is_the_last_update(is_gone: bool) -> None:
    job = Job()
    feed = job.feed(pace=lambda elapsed: 1000.0)
    job.does(30)
    first = feed.look()
    assert first is not None
    assert not first.is_last
    assert job.seen is not None
    job.seen = None if is_gone else replace(job.seen, events=({"event": "ended"},))
    last = feed.look()
    assert last is not None
    assert (last.is_last, [len(one.steps.steps) for one in last.points]) == (True, [30])
    unseen = Job()
    unseen.seen = None
    assert unseen.feed().look() is None


class Server:
    """An exporter that does what it is told to."""

    def __init__(self, write: Callable[[Update], None]) -> None:
        self.write = write
        self.closed = False

    def close(self) -> None:
        self.closed = True


def update(number: int) -> Update:
    return Update(snapshot=Snapshot(job=str(number), start=0, time=0.0, is_running=True, workers=()))


def test_what_fails_is_told_once_and_tried_again() -> None:
    written: list[str] = []
    said: list[str] = []
    tries = iter(range(100))

    def write(one: Update) -> None:
        if next(tries) < 3:
            raise OSError("it is down\nand more")
        written.append(one.snapshot.job)

    server = Server(write)
    outlet = Outlet("mlflow", lambda: server, said.append, first_wait=0.001)
    for number in range(5):
        outlet.put(update(number))
    deadline = time.monotonic() + 300
    while len(written) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert outlet.end(deadline)
    assert written == ["0", "1", "2", "3", "4"]
    (warning,) = said
    assert warning.startswith("warning: export to mlflow")
    assert "it is down" in warning
    assert "and more" not in warning
    assert server.closed


def test_what_cannot_be_made_is_told_once() -> None:
    said: list[str] = []

    def make() -> Server:
        raise OSError("the port is taken")

    outlet = Outlet("prometheus:1", make, said.append)
    for number in range(3):
        outlet.put(update(number))
    assert outlet.end(time.monotonic() + 300)
    assert len(said) == 1


def test_nobody_waits_for_a_server_that_hangs() -> None:
    said: list[str] = []
    hung, reached = threading.Event(), threading.Event()

    def write(one: Update) -> None:
        reached.set()
        hung.wait(600)

    outlet = Outlet("mlflow", lambda: Server(write), said.append)
    outlet.put(update(0))
    assert reached.wait(300)
    for number in range(outlets.MOST + 10):
        outlet.put(update(number))
    (warning,) = said
    assert warning.startswith("warning: export to mlflow")
    assert "points are left out" in warning
    assert not outlet.end(time.monotonic() + 0.01)
    hung.set()
    assert outlet.end(time.monotonic() + 300)


def test_the_folder_of_an_exporter_may_not_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    outlet = Outlet(
        "tensorboard",
        lambda: exporter.make(exporter.Target("tensorboard", str(tmp_path / "file"))),
        said.append,
    )
    outlet.put(replace(update(0), events=({"event": "ended"},)))
    assert outlet.end(time.monotonic() + 300)
    assert "cannot be written" in said[0]


def test_curves_of_a_divided_step_have_points_where_a_part_lasts_no_time() -> None:
    from tfdist.monitor.exporters.tensorboard_exporter import of_steps

    usual = {"input": 0.0, "forward": 5.0, "backward": 0.0, "communication": 0.0, "update": 2.0, "python": 1.0}
    steps = timeline(simulated(1, 5, usual=usual))
    steps.loss[3] = math.nan
    found = {one.tag: one for one in of_steps(Point(step=4, time=0.0, steps=steps), 0)}
    assert found["step_seconds_histogram/backward"].histo.num == 5
    assert found["step_seconds/backward"].simple_value == 0
    assert "step_seconds/checkpoint" not in found
    assert math.isnan(found["loss"].simple_value)


def test_the_death_of_what_exports_is_one_warning(tmp_path: Path) -> None:
    said: list[str] = []
    exporting = Exporting("no such job", [f"html:{tmp_path}/page.html"], said.append)
    os.kill(exporting.pid, signal.SIGKILL)
    deadline = time.monotonic() + 300
    while not said and time.monotonic() < deadline:
        time.sleep(0.01)
    (warning,) = said
    assert warning.startswith("warning: ")
    assert "signal 9" in warning
    exporting.end()
    again = Exporting("no such job", [f"html:{tmp_path}/page.html"], said.append)
    again.end(300)
    assert len(said) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(again.pid, 0)
