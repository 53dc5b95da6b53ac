"""The step benchmark without workers: what is measured, and the figures."""

import json
from typing import Any

import pytest

from tfdist.bench.step import Setup, StepReport, arms
from tfdist.errors import ConfigError
from tfdist.strategies import registry


def setup(**changes: Any) -> Setup:
    given = {"strategy": "ring", "workers": 2, "replicas_per_worker": 1, "model": "convolutional"}
    numbers = {"global_batch_size": 32, "warm_up_steps": 3, "steps": 10, "rounds": 3}
    return Setup(**{**given, **numbers, **changes})


def report(strategy: str = "ring") -> StepReport:
    seconds = {"tensorflow loop": 0.4, "horovod loop": 0.2, "tfdist loop": 0.1, "tfdist fit": 0.16}
    measured = {arm: [seconds[arm], 2 * seconds[arm], seconds[arm]] for arm in arms(strategy)}
    return StepReport(setup=setup(strategy=strategy), seconds=measured, machine={})


def test_only_the_ring_has_horovod_for_a_peer() -> None:
    assert {name for name in registry.names() if "horovod loop" in arms(name)} == {"ring"}
    assert all({"tensorflow loop", "tfdist loop", "tfdist fit"} <= set(arms(name)) for name in registry.names())


def test_peers_have_processes_of_their_own() -> None:
    assert list(arms("ring").values()) == ["tensorflow", "horovod", "ring", "ring"]


def test_speed_is_the_peers_time_over_that_of_fit() -> None:
    assert report().speed("horovod loop").median == pytest.approx(1.25)
    assert report().speed("tensorflow loop").median == pytest.approx(2.5)
    assert report("mirrored").speed("horovod loop") is None
    assert report().correctness_cost.median == pytest.approx(1.6)


def test_throughput_counts_all_examples_of_a_step_once() -> None:
    found = report().throughput("tfdist loop")  # 32 examples in 0.1, 0.2 and 0.1 s, whatever the number of workers
    assert found.mean == pytest.approx((320 + 160 + 320) / 3)
    assert found.deviation == pytest.approx(1.96 * 160 * 2**0.5 / 3)


def test_the_report_is_json_with_its_figures() -> None:
    read = json.loads(report().to_json())
    assert read["speed"]["horovod loop"]["median"] == pytest.approx(1.25)
    assert read["examples_per_second"]["tfdist fit"]["mean"] == pytest.approx((200 + 100 + 200) / 3)
    assert list(json.loads(report("mirrored").to_json())["speed"]) == ["tensorflow loop"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch_size": 33}, "33 examples for 2 replicas"),
        ({"steps": 0}, "steps is 0"),
        ({"rounds": True}, "rounds is True"),
        ({"strategy": "rings"}, "strategy is 'rings'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        setup(**changes)
