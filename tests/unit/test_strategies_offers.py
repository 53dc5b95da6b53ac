"""The engine that workers take: one for all, by what each of them has; a table."""

import pytest

from tests.refusals import refused
from tfdist.collectives.collective_selection import Offer, chosen
from tfdist.errors import ConfigError, MissingDependencyError, TfdistError, UnsupportedError

CPU, GPU = "/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:GPU:0"


def offers(asked: str, *workers: tuple[tuple[str, ...], str]) -> list[Offer]:
    return [Offer(asked=asked, devices=devices, missing=missing) for devices, missing in workers]


HAS, LACKS = ((CPU,), ""), ((CPU,), "no compiler")


@pytest.mark.parametrize(
    ("workers", "engine", "why"),
    [
        ((HAS, HAS), "native", "one CPU replica"),
        ((HAS, LACKS), "tensorflow", "worker 1: no compiler"),
        ((HAS, ((GPU,), "")), "tensorflow", "worker 1 has a GPU"),
        ((((CPU, CPU), ""), ((CPU, CPU), "")), "tensorflow", "worker 0 has several replicas"),
    ],
)
def test_auto_takes_what_all_have_and_says_why(
    workers: tuple[tuple[tuple[str, ...], str], ...], engine: str, why: str
) -> None:
    choice = chosen(offers("auto", *workers))
    assert choice.engine == engine
    assert why in choice.why
    assert choice.is_second_best == any(missing for _, missing in workers)


@pytest.mark.parametrize("engine", ["tensorflow", "native", "horovod"])
def test_what_is_asked_for_is_taken(engine: str) -> None:
    assert chosen(offers(engine, HAS, HAS)).engine == engine


def test_native_collectives_serve_several_replicas_per_worker() -> None:
    assert chosen(offers("native", ((CPU, CPU), ""), ((CPU, CPU), ""))).engine == "native"


@pytest.mark.parametrize(
    ("of_all", "kind", "received", "workers", "fact"),
    [
        (offers("native", HAS, LACKS), UnsupportedError, "native", [1], "worker 1: no compiler"),
        (offers("horovod", HAS, LACKS), MissingDependencyError, "horovod", [1], "worker 1: no compiler"),
        (offers("native", HAS, ((GPU,), "")), ConfigError, "native", [1], "for CPUs"),
        (offers("native", ((CPU, CPU), ""), HAS), ConfigError, "native", [0, 1], "as many"),
        (offers("horovod", ((CPU, CPU), ""), HAS), ConfigError, "horovod", [0], "one replica per worker"),
        (offers("native", HAS) + offers("auto", HAS), ConfigError, "auto", [0, 1], '"native" on worker 0'),
    ],
)
def test_what_cannot_be_is_refused_alike_on_all_workers(
    of_all: list[Offer], kind: type[TfdistError], received: str, workers: list[int], fact: str
) -> None:
    with refused(kind, name="collectives", received=received, workers=workers, mentions=[fact]):
        chosen(of_all)
