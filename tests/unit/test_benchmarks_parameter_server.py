"""The benchmark of parameter servers without any: turns, figures, ids, memory and files."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.servers import slow_workers, table_lookups
from benchmarks.servers.slow_workers import Crowd
from tfdist.bench.workers import lanes

SECONDS = {"synchronous": 3.0, "bounded": 2.0, "asynchronous": 1.5}


class Chief:
    """Stands for the process of a chief: notes what it is asked, and answers with fixed figures."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.alone = iter([1.0, 1.1, 0.9, 3.0, 3.3, 2.7])

    def __enter__(self) -> "Chief":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, target: str, **arguments: Any) -> list[Any]:
        function = target.rpartition(":")[2]
        self.calls.append((function, arguments))
        match function:
            case "start":
                return [[101, 102][: arguments["workers"]]]
            case "alone":
                return [next(self.alone)]
            case "measure" if "mode" in arguments:
                return [{"seconds": SECONDS[arguments["mode"]], "staleness": {"1": 2, "0": 1}}]
            case "memory":
                return [[{"placed": 1_000_000, "resident": 2_000_000, "most": 3_000_000}] * 2]
        return [0.5]


class Recorded:
    """Stands for a throttle; notes which process was slow, and until when."""

    slowed: list[tuple[int, float]] = []  # noqa: RUF012 - emptied by the fixture
    running = False

    def __init__(self, pid: int, factor: float) -> None:
        self.slowed.append((pid, factor))

    def __enter__(self) -> None:
        Recorded.running = True

    def __exit__(self, *_: object) -> None:
        Recorded.running = False


@pytest.fixture
def chief(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chief]:
    found = Chief()
    Recorded.slowed.clear()
    monkeypatch.setattr(lanes, "Lane", lambda name, workers, environment=None: found)
    monkeypatch.setattr(slow_workers, "Throttle", Recorded)
    yield found
    assert not Recorded.running


def measured(workers: int) -> Crowd:
    return slow_workers.measured(workers, slow_factor=3.0, rounds=4, steps=10, batch_size=8)


def test_modes_take_turns_and_another_one_begins_each_round(chief: Chief) -> None:
    measured(2)
    turns = [arguments["mode"] for function, arguments in chief.calls if function == "measure"]
    rounds = [turns[first : first + 3] for first in range(0, 12, 3)]
    assert [sorted(each) for each in rounds] == [sorted(SECONDS)] * 4
    assert [each[0] for each in rounds] == ["synchronous", "bounded", "asynchronous", "synchronous"]
    assert chief.calls[-1][0] == "end"


def test_the_last_of_several_workers_is_slow_and_measured_alone(chief: Chief) -> None:
    assert measured(2).slow_down == pytest.approx(3.0)
    assert Recorded.slowed == [(102, 3.0)]
    assert measured(1).slow_down is None
    assert Recorded.slowed == [(102, 3.0)]


def test_a_worker_is_let_go_when_a_measurement_fails(chief: Chief, monkeypatch: pytest.MonkeyPatch) -> None:
    call = chief.call

    def failing(target: str, **arguments: Any) -> list[Any]:
        if target.endswith(":measure"):
            assert Recorded.running
            raise KeyboardInterrupt
        return call(target, **arguments)

    monkeypatch.setattr(chief, "call", failing)
    with pytest.raises(KeyboardInterrupt):
        measured(2)
    assert not Recorded.running


def test_the_bound_lets_every_worker_be_busy() -> None:
    for workers in (1, 2, 3, 8):
        found = slow_workers.bounds(workers)
        assert found["synchronous"] == 0
        assert found["bounded"] == workers + 1
        assert found["asynchronous"] is None


def test_a_power_law_is_one() -> None:
    rows = 100_000
    drawn = np.sort(np.unique(table_lookups.draw("power law", 200_000, rows), return_counts=True)[1])[::-1]
    # rank r has the share log(1 + 1 / r) / log(1 + rows)
    for rank in (1, 2, 10):
        share = np.log1p(1 / rank) / np.log1p(rows)
        assert drawn[rank - 1] / 200_000 == pytest.approx(share, rel=0.1)
    assert len(np.unique(table_lookups.draw("uniform", 200_000, rows))) > 2 * len(drawn)
