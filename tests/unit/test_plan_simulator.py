"""The simulator beside closed forms: steps, failures, servers, and its own limits."""

import dataclasses
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tests.unit.test_plan_steps import SMALL, network_of, profile_of
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.planner.scaling.job_cost import Price, cost
from tfdist.planner.scaling.job_simulator import Scenario, simulate
from tfdist.planner.scaling.job_steps import METHODS, Job, predict
from tfdist.planner.scaling.save_interval import Failures
from tfdist.planner.scaling.simulated_trace import trace_of


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
@pytest.mark.parametrize("is_direct", [False, True])
def test_without_noise_steps_are_as_predicted(method: str, rate: float, is_direct: bool) -> None:
    workers = 1 if method == "one device" else 4
    network = network_of(rate, 0.001, is_direct=is_direct)
    job = Job(profile=SMALL, network=network, workers=workers, method=method, servers=2)
    found = simulate(job, Scenario(steps=40))
    assert float(np.median(found.step_seconds)) == pytest.approx(predict(job).seconds, rel=1e-9)
    assert found.is_finished
    assert found.seconds == pytest.approx(40 * predict(job).seconds, rel=0.05 if method == "parameter-server" else 1e-9)


@pytest.mark.parametrize("method", ["data", "sharded", "local-sgd"])
def test_noise_costs_what_is_predicted(method: str) -> None:
    job = Job(profile=SMALL, network=network_of(1e12), workers=32, method=method, noise=0.1)
    found = simulate(job, Scenario(steps=4000))
    assert float(found.step_seconds.mean()) == pytest.approx(predict(job).seconds, rel=0.01)
    assert found.waited > 0.04


def test_workers_of_1000_1200_and_1100_ms_take_1200_ms() -> None:
    job = Job(profile=profile_of(1.0, 2.0, [0], batch=3), network=network_of(), workers=3)
    found = simulate(job, Scenario(steps=5, slow={1: 1.2, 2: 1.1}))
    assert found.step_seconds == pytest.approx([1.2] * 5)
    assert found.waited == pytest.approx((0.2 + 0.1) / 3.6)
    served = dataclasses.replace(job, method="parameter-server", network=network_of(1e30))
    alone = simulate(served, Scenario(steps=2000, slow={1: 1.2, 2: 1.1}))  # no worker waits for another
    assert alone.seconds / 2000 == pytest.approx(3 / (1 + 1 / 1.2 + 1 / 1.1), rel=0.01)
    assert alone.waited < 0.01


def test_workers_wait_where_servers_are_the_limit() -> None:
    job = Job(profile=SMALL, network=network_of(1e7), workers=4, method="parameter-server")
    found = simulate(job, Scenario(steps=1000))
    own = 2 * job.network.link.send_seconds(SMALL.parameter_bytes) + SMALL.fixed_seconds + predict(job).compute
    assert found.waited == pytest.approx(1 - own / predict(job).seconds, rel=0.01)
    assert found.worker_seconds == 4 * found.seconds


@pytest.mark.parametrize("given", [{"failures": Failures(mtbf_seconds=900.0)}, {"interval_seconds": 60.0}])
def test_parameter_servers_are_not_simulated_with_failures_or_saves(given: dict[str, Any]) -> None:
    job = Job(profile=SMALL, network=network_of(), workers=2, method="parameter-server")
    with refused(UnsupportedError, name="failures"):
        simulate(job, Scenario(steps=10, **given))


def test_a_save_comes_with_the_first_step_after_each_interval() -> None:
    job = Job(profile=profile_of(0.5, 0.5, [0]), network=network_of())
    found = simulate(job, Scenario(steps=100, save_seconds=2.0, interval_seconds=9.5))
    assert (found.saves, found.repeated, found.seconds) == (10, 0, pytest.approx(120.0))


def test_failures_cost_what_is_predicted() -> None:
    """Some 1,700 failures of 8 workers; useful time within 2 % of the closed form, at the interval that it chooses."""
    failures = Failures(mtbf_seconds=4 * 3600.0, restart_seconds=60.0)
    expected = cost(1.0, 8, Price(failures=failures), save_seconds=20.0)
    assert expected.interval_seconds is not None
    job = Job(profile=profile_of(2.0, 4.0, [0], batch=8), network=network_of(), workers=8)
    scenario = Scenario(
        steps=3_000_000,
        failures=failures,
        save_seconds=20.0,
        interval_seconds=expected.interval_seconds,
    )
    found = simulate(job, scenario)
    trained = 3_000_000 * predict(job).seconds
    assert found.is_finished
    assert found.failures > 1000
    assert trained / found.seconds == pytest.approx(expected.useful, rel=0.02)
    assert found.worker_seconds == pytest.approx(8 * found.seconds)
    assert len(found.step_seconds) == 3_000_000 + found.repeated


def test_elastic_jobs_go_on_with_fewer_workers() -> None:
    failures = Failures(mtbf_seconds=20_000.0, restart_seconds=10.0)
    job = Job(profile=profile_of(2.0, 4.0, [0], batch=8), network=network_of(), workers=4)
    given = Scenario(steps=400_000, failures=failures, interval_seconds=500.0, least=3, away_seconds=2000.0)
    found = simulate(job, dataclasses.replace(given, slow={3: 1.1}))
    assert found.is_finished
    assert {round(float(one), 6) for one in np.unique(found.step_seconds)} == {2.0, 1.65}, "of 3 and of 4 workers"
    away = 2000 / (2000 + 20_000 / 4)  # the part of the time in which one worker is away, and never two
    assert found.worker_seconds / found.seconds == pytest.approx(4 - away, rel=0.02)


def test_a_job_that_fails_all_the_time_does_not_finish() -> None:
    hopeless = Failures(mtbf_seconds=1.0, restart_seconds=10.0)
    job = Job(profile=SMALL, network=network_of(), workers=8)
    assert not simulate(job, Scenario(steps=1000, failures=hopeless)).is_finished


def test_the_same_seed_gives_the_same_job() -> None:
    job = Job(profile=SMALL, network=network_of(), workers=8, noise=0.1)
    one, same, other = (simulate(job, Scenario(steps=50, seed=seed)).seconds for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_ten_thousand_workers_for_a_thousand_steps() -> None:
    """Ten million draws, in blocks of eight megabytes; a second and a half of a processor."""
    profile = profile_of(0.1, 0.2, [10**6] * 50, batch=10_000)
    job = Job(profile=profile, network=network_of(1e12), workers=10_000, noise=0.05)
    failures = Failures(mtbf_seconds=1e7, restart_seconds=30.0)
    tracemalloc.start()
    try:
        found = simulate(job, Scenario(steps=1000, failures=failures, interval_seconds=60.0, save_seconds=1.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.is_finished
    assert len(found.step_seconds) >= 1000
    assert peak < 100e6


def test_the_trace_has_what_steps_are_made_of() -> None:
    job = Job(profile=SMALL, network=network_of(1e9), workers=3, noise=0.1)
    scenario = Scenario(steps=5)
    events = [one for one in json.loads(trace_of(job, scenario, steps=2))["traceEvents"] if one["ph"] == "X"]
    lengths = simulate(job, scenario).step_seconds
    for step in (0, 1):
        own = [one for one in events if one["args"]["step"] == step]
        ends = max(one["ts"] + one["dur"] for one in own if one["tid"] == 0)
        assert ends == pytest.approx(1e6 * lengths[: step + 1].sum(), rel=1e-9)
        last_message = max(one["ts"] + one["dur"] for one in own if one["tid"] == 1)
        assert last_message <= ends
    assert {one["pid"] for one in events} == {0, 1, 2}
    few = trace_of(dataclasses.replace(job, workers=40), scenario, steps=1, workers=2)
    assert {one["pid"] for one in json.loads(few)["traceEvents"]} == {0, 1}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"save_seconds": -1.0}, "save_seconds"),
        ({"slow": {0: 0.0}}, "the slowness of worker 0"),
    ],
)
def test_scenarios_that_make_no_sense(change: dict[str, object], name: str) -> None:
    with refused(ConfigError, name=name):
        Scenario(**{"steps": 1, **change})  # type: ignore[arg-type]


def test_a_pipeline_is_not_elastic() -> None:
    job = Job(profile=SMALL, network=network_of(), workers=2, method="pipeline")
    with refused(ConfigError, name="least", received=1):
        simulate(job, Scenario(steps=1, least=1))
    assert simulate(job, Scenario(steps=1)).seconds < math.inf
