"""The driver of Ray reports the end of every agent, whatever fails on the way. Ray is a stand-in here."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.jobs.launchers.ray.ray_driver import Driver


class RayError(Exception):
    """As Ray's own."""


class Wire:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def ends(monkeypatch: pytest.MonkeyPatch, agents: dict[Any, str], call: Any = None, **ray: Any) -> list[dict[str, Any]]:
    """Return what the driver reports of these agents, given what Ray does."""
    exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=exceptions, **ray))
    wire = Wire()
    Driver(wire, threading.Event())._watch(dict(agents), 0, call)  # type: ignore[arg-type]
    return wire.sent


def wait(agents: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
    return agents[:1], agents[1:]


def test_the_end_of_an_agent_is_reported_if_its_result_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("code", str(tmp_path / "missing" / "result"))
    (told,) = ends(monkeypatch, {1: "a"}, call, wait=wait, get=lambda one: (0, [], b"result"))
    assert (told["ended"], told["lost"]) == ("a", False)


def test_a_result_replaces_an_earlier_one_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tmp_path / "result"
    result.write_bytes(b"an earlier and longer one")
    ends(monkeypatch, {1: "a"}, ("code", str(result)), wait=wait, get=lambda one: (0, [], b"new"))
    assert result.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [result]


@pytest.mark.parametrize("error", [RayError(""), ConnectionError("gone"), RuntimeError()])
@pytest.mark.parametrize("fails", ["wait", "get"])
def test_all_agents_are_reported_as_lost_if_ray_fails(
    fails: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    told = ends(monkeypatch, {1: "a", 2: "b"}, **{"wait": wait, "get": lambda one: (0, [], None), fails: fail})
    assert sorted((one["ended"], one["lost"]) for one in told) == [("a", True), ("b", True)]
