"""The workers of a job that are present, and the one cause that all name when some are not."""

import time
from collections.abc import Iterator

import pytest

from tfdist.collectives import membership as module
from tfdist.collectives.membership import Membership, sentence, silent
from tfdist.collectives.rendezvous_store import Store, StoreServer


@pytest.fixture
def address() -> Iterator[str]:
    server = StoreServer("127.0.0.1", 0)
    yield server.address
    server.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.05)


def member(address: str, index: int, told: list[int], count: int = 3) -> Membership:
    addresses = [f"host:{i}" for i in range(count)]
    store = Store(address)
    return Membership(store, index=index, count=count, addresses=addresses, on_broken=lambda: told.append(index))


@pytest.mark.parametrize(
    ("ages", "says"),
    [
        ({"0": 0.1, "1": 3.9, "2": 0.5}, {}),
        ({"0": 0.1, "1": 4.1, "2": 99.0}, {1: "has not been heard of for 4 s", 2: "has not been heard of for 99 s"}),
        ({"0": 0.1, "1": 0.2}, {2: "has not been heard of"}),
    ],
)
def test_who_is_silent(ages: dict[str, float], says: dict[int, str]) -> None:
    assert silent(ages, 3, 4.0) == says


def test_a_sentence_names_all_and_where_they_were() -> None:
    said = sentence({1: "has ended", 2: "is silent"}, ["a:1", "b:1"])
    assert said.split("; ") == ["worker 1 (b:1) has ended", "worker 2 is silent"]


@pytest.mark.usefixtures("quick")
def test_a_worker_that_left_is_found_and_all_learn_of_it(address: str) -> None:
    told: list[int] = []
    members = [member(address, index, told) for index in range(3)]
    members[1].leave()
    assert members[0].find_cause() == "worker 1 (host:1) has ended"
    assert members[2].find_cause() == "worker 1 (host:1) has ended"
    for one in (members[0], members[2]):
        one.leave()


@pytest.mark.usefixtures("quick")
def test_the_first_cause_stays_and_reaches_who_did_not_ask(address: str) -> None:
    told: list[int] = []
    first, second = member(address, 0, told, 2), member(address, 1, told, 2)
    assert first.broken_by("worker 0 gave up") == "worker 0 gave up"
    assert second.broken_by("worker 1 gave up too") == "worker 0 gave up"
    third = member(address, 2, told)
    deadline = time.monotonic() + 200
    while 2 not in told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 2 in told
    assert third.cause == "worker 0 gave up"
    for one in (first, second, third):
        one.leave()


@pytest.mark.usefixtures("quick")
def test_without_the_store_it_is_its_holder_who_has_gone() -> None:
    server = StoreServer("127.0.0.1", 0)
    other = member(server.address, 1, [])
    server.close()
    assert other.find_cause().startswith("worker 0 (host:0) ")
    other.leave()
