"""The step benchmark without workers: what is measured, and the figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.step_bench import STRATEGIES, StepBench, StepReport, arms
from tfdist.cli.main import main
from tfdist.errors import ConfigError, MissingDependencyError, TfdistError
from tfdist.planner import machine


def setup(**changes: Any) -> StepBench:
    given = {"strategy": "ring", "workers": 2, "replicas_per_worker": 1, "model": "convolutional"}
    numbers = {"global_batch_size": 32, "warm_up_steps": 3, "steps": 10, "rounds": 3}
    return StepBench(**{**given, **numbers, **changes})


def report(strategy: str = "ring") -> StepReport:
    seconds = {"tensorflow loop": 0.4, "horovod loop": 0.2, "tfdist loop": 0.1, "tfdist fit": 0.16}
    measured = {arm: [seconds[arm], 2 * seconds[arm], seconds[arm]] for arm in arms(strategy)}
    return StepReport(setup=setup(strategy=strategy), seconds=measured, machine={})


def test_strategies_of_several_processes_have_horovod_for_a_peer_where_it_is_installed() -> None:
    assert {name for name in STRATEGIES if "horovod loop" in arms(name)} == {"multi-worker", "ring"}
    assert {name for name in STRATEGIES if "horovod loop" in arms(name, horovod=False)} == {"ring"}
    assert all({"tensorflow loop", "tfdist loop", "tfdist fit"} <= set(arms(name)) for name in STRATEGIES)


def test_several_steps_in_a_graph_are_an_arm_more() -> None:
    one, twenty = arms("mirrored"), arms("mirrored", steps_per_execution=20)
    assert set(twenty) - set(one) == {"tfdist fit, several steps"}
    assert report().speed_of_several_steps is None
    seconds = {**report().seconds, "tfdist fit, several steps": [0.08, 0.16, 0.08]}
    found = StepReport(setup=setup(steps_per_execution=5), seconds=seconds, machine={})
    assert json.loads(found.to_json())["speed_of_several_steps"]["median"] == pytest.approx(2.0)


def test_peers_have_processes_of_their_own() -> None:
    assert list(arms("ring").values()) == ["tensorflow", "horovod", "ring", "ring"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch_size": 33}, "33 examples for 2 replicas"),
        ({"steps": 0}, r"steps \(--steps\) is 0"),
        ({"rounds": True}, r"rounds \(--rounds\) is True"),
        ({"strategy": "rings"}, "strategy is 'rings'"),
        ({"collectives": "native"}, "only 'multi-worker' has a choice"),
        ({"strategy": "multi-worker", "collectives": "mpi"}, "collectives is 'mpi'"),
        ({"steps_per_execution": 4}, "steps is 10 and steps_per_execution is 4"),
        ({"strategy": "parameter-server"}, "strategy is 'parameter-server'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        setup(**changes)


def measured(setup: StepBench, told: Any) -> StepReport:
    """Stands for a run of a benchmark."""
    found = report(setup.strategy)
    return StepReport(
        setup=setup, seconds=found.seconds, machine={**machine.describe(), "load average at the end": "0.1"}
    )


def test_every_strategy_whose_replicas_step_together_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepBench, "run", measured)
    done = CliRunner().invoke(main, ["bench", "step", "--json", "-"])
    assert done.exit_code == 0, done.output
    setups = [each["setup"] for each in json.loads(done.stdout)]
    assert [(one["strategy"], one["workers"], one["replicas_per_worker"]) for one in setups] == [
        ("mirrored", 1, 2),
        ("multi-worker", 2, 1),
        ("ring", 2, 1),
    ]


def test_each_engine_of_multi_worker_is_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepBench, "run", measured)
    engines = ["--collectives", "native", "--collectives", "tensorflow"]
    done = CliRunner().invoke(main, ["bench", "step", "--strategy", "ring", "--strategy", "multi-worker", *engines])
    assert done.exit_code == 0, done.output
    assert all(title in done.output for title in ("ring, 2 x 1", "multi-worker native,", "multi-worker tensorflow,"))


def test_what_was_measured_is_there_when_another_strategy_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(setup: StepBench, told: Any) -> StepReport:
        if setup.strategy == "multi-worker":
            raise MissingDependencyError("there is none")
        if setup.strategy == "ring":
            raise TfdistError("ring: worker 1 exited")
        return measured(setup, told)

    monkeypatch.setattr(StepBench, "run", run)
    path = tmp_path / "report.json"
    done = CliRunner().invoke(main, ["bench", "step", "--json", str(path)])
    assert done.exit_code == 1
    assert "multi-worker left out" in done.output
    assert "ring: worker 1 exited" in done.output
    assert "tfdist fit, ms" in done.output
    assert [each["setup"]["strategy"] for each in json.loads(path.read_text())] == ["mirrored"]
    path.unlink()
    assert CliRunner().invoke(main, ["bench", "step", "--strategy", "ring", "--json", str(path)]).exit_code == 1
    assert not path.exists(), "nothing was measured"
