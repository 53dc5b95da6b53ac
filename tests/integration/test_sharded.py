"""Sharded data parallelism: the numbers of one device, from a part of the slots in each process.

Two workers shard slots, three shard accumulated gradients too, and two the weights as well. What neither stage, number
nor collectives can change is tried in one of the groups.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.strategies import registry
from tfdist.testing.pool import WorkerPool, worker_environments

DEADLINE_SECONDS = 900
CASES = Path(__file__).parent / "cases"
# workers, stage and what carries tensors
TWO, THREE = (2, 1, "native"), (3, 2, "native")
WEIGHTS = (2, 3, "native")
OVER_TENSORFLOW, OVER_HOROVOD = (2, 3, "tensorflow"), (2, 1, "horovod")
# Every optimizer is trained in one of the lists. Where weights lie in parts, which is traced longest, other tests train
# several optimizers and a scaled loss.
OF_TWO = [
    ("sgd", "plain"),
    ("sgd", "table"),
    ("momentum, clipvalue", "plain"),
    ("adam, clipnorm", "table"),
    ("adam, average at the end", "plain"),
    ("adam, scaled", "plain"),
    ("lamb", "plain"),
    ("lars", "plain"),
    ("schedule free", "plain"),
    ("unknown", "plain"),
    ("several", "plain"),
    ("distributed", "plain"),
    ("distributed, accumulating whole", "plain"),
]
# What is updated element by element and whole, by one worker each; accumulated in parts and whole; clipped by all.
OF_THREE = [
    ("adam, global_clipnorm", "plain"),
    ("adam, accumulating", "plain"),
    ("adafactor", "plain"),
    ("distributed, accumulating", "plain"),
    ("distributed, accumulating", "table"),
    ("distributed, accumulating whole", "plain"),
]
# by elements, and whole by one worker for which all gather
OF_WEIGHTS = [
    ("adam, clipnorm", "plain"),
    ("adam, global_clipnorm", "table"),
    ("adamw", "plain"),
    ("adam, average", "plain"),
    ("adam, accumulating", "table"),
    ("lamb, average", "plain"),
    ("adafactor", "table"),
    ("unknown", "plain"),
    ("distributed", "table"),
    ("distributed, accumulating", "plain"),
    ("distributed, accumulating whole", "plain"),
]
OF_OTHERS = [("adam, clipnorm", "plain"), ("adafactor", "table"), ("distributed, accumulating", "plain")]


def start(forking: Forks, workers: int, stage: int, collectives: str) -> WorkerPool:
    def environments() -> list[dict[str, str]]:
        made = worker_environments(
            os.environ, strategy="sharded-data-parallel", ports=ports.free_ports(workers), replicas_per_worker=1
        )
        more = {"PYTHONPATH": python_path(CASES), registry.COLLECTIVES_VARIABLE: collectives}
        return [environment | more | {registry.STAGE_VARIABLE: str(stage)} for environment in made]

    pool = WorkerPool(environments, start=forking.worker)
    pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes
    return pool


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, *request.param) as workers:
        yield workers


@pytest.fixture
def group(request: pytest.FixtureRequest) -> tuple[int, int, str]:
    found: tuple[int, int, str] = request.node.callspec.params["pool"]
    return found


def within(*groups: tuple[int, int, str]) -> pytest.MarkDecorator:
    names = [f"{workers} workers, stage {stage}, {collectives}" for workers, stage, collectives in groups]
    return pytest.mark.parametrize("pool", groups, indirect=True, ids=names)


def call(pool: WorkerPool, function: str, **arguments: Any) -> list[Any]:
    answers = pool.call(f"sharded_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    for reply in sorted(answers, key=lambda reply: reply.seconds):  # the first failure is the cause
        assert reply.status == "returned", f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}"
    return [reply.value for reply in answers]


@within(TWO, THREE, WEIGHTS, OVER_TENSORFLOW, OVER_HOROVOD)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_optimizers_have_the_numbers_of_one_device(pool: WorkerPool, group: tuple[int, int, str]) -> None:
    cases = {TWO: OF_TWO, THREE: OF_THREE, WEIGHTS: OF_WEIGHTS}.get(group, OF_OTHERS)
    found = call(pool, "differences", cases=cases)[0]
    assert len(found) == len(cases)
    assert max(found.values()) < 1e-5, {name: value for name, value in found.items() if value >= 1e-5}


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_each_worker_has_its_part_of_the_weights(pool: WorkerPool) -> None:
    answers = call(pool, "elements_of_weights")
    for mine, whole in zip(zip(*[held for held, _ in answers], strict=True), answers[0][1], strict=True):
        assert sum(mine) == whole
        assert max(mine) - min(mine) <= 1


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_each_worker_has_its_part_of_the_slots(pool: WorkerPool, group: tuple[int, int, str]) -> None:
    workers = group[0]
    answers = call(pool, "bytes_of_slots")
    for name in ("adam, clipnorm", "lamb"):
        held, every = [answer[name][0] for answer in answers], answers[0][name][1]
        assert sum(held) == every
        # variables are divided to an element, or dealt out whole: there are six large ones
        assert max(held) == pytest.approx(every / workers, rel=0.002 if name != "lamb" else 0.02)


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_step_sends_as_many_bytes_as_an_all_reduce(pool: WorkerPool) -> None:
    for found in call(pool, "bytes_of_a_step"):
        assert set(found["sent"]) == {"reduce_scatter", "all_gather"}
        assert sum(found["sent"].values()) == pytest.approx(found["all_reduce"], rel=0.02)


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_weights_are_gathered_for_each_pass(pool: WorkerPool) -> None:
    # before the models with larger weights: what a strategy lets arrive ahead follows from the largest that it has seen
    for found in call(pool, "bytes_of_a_step"):
        sent, half = found["sent"], found["all_reduce"] / 2
        assert set(sent) == {"reduce_scatter", "all_gather"}
        assert sent["reduce_scatter"] == pytest.approx(half, rel=0.02)
        # of six layers the first one's weights are not used in the backward pass, and the last one's are still there
        assert sent["all_gather"] == pytest.approx(half * (1 + 4 / 6), rel=0.02)


@within(TWO, WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_process_takes_the_memory_of_the_formula(pool: WorkerPool) -> None:
    for found in call(pool, "memory_of_a_step", layers=40, units=768):
        if found is None:
            pytest.skip("TensorFlow does not count the memory of this kind of processor")
        # the allocator rounds what lies there for long up, to pieces that are there
        assert found["weights and slots"] * 0.99 < found["rest"] < found["weights and slots"] * 1.15
        assert found["weights and slots"] + found["step"] == pytest.approx(found["formula"], rel=0.05)


@within(TWO)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_dtypes_are_kept(pool: WorkerPool) -> None:
    for found in call(pool, "dtypes"):
        assert found.pop("float64") < 1e-12
        assert found.pop("mixed_bfloat16") < 0.05
        assert max(found.values()) < 0.05, found  # of 8 or 11 bits


@within(THREE, WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_saved_model_is_one_devices(pool: WorkerPool, group: tuple[int, int, str], tmp_path: Path) -> None:
    names = {THREE: ["distributed, accumulating", "adafactor"], WEIGHTS: ["adam, average at the end", "several"]}[group]
    found = call(pool, "saved", folder=str(tmp_path), names=names)[0]
    assert len(found) == len(names)
    assert max(found.values()) < 1e-5, found


@within(TWO)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_chief_that_saves_alone_is_told_to_save_on_all(pool: WorkerPool, tmp_path: Path) -> None:
    said = call(pool, "chief_saves_alone", folder=str(tmp_path))[0]
    assert "worker 1 has not come" in said
    assert "Call model.save() on every worker" in said


@within(THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_gradient_that_is_bad_on_one_worker_is_applied_on_none(pool: WorkerPool) -> None:
    for found in call(pool, "a_bad_gradient"):
        assert found == {"keras": 2, "tfdist": 2}


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_model_that_runs_eagerly_has_the_numbers_of_one_device(pool: WorkerPool) -> None:
    assert max(call(pool, "eagerly")) < 1e-5


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_what_cannot_be_is_refused(pool: WorkerPool, group: tuple[int, int, str]) -> None:
    for found in call(pool, "refused", among=None if group == THREE else ["compression", "adasum"]):
        if group == TWO:
            assert found == {}  # stage 1 takes both
            continue
        assert "'OwnApply' has an `apply` of its own" in found["apply"]
        assert "keeps the number 'count'" in found["number"]
        assert found["no stage"].startswith("ConfigError: shard_optimizer is 0")
        assert "outside of a step of model.fit" in found["loop"]
        assert "tf.train.Checkpoint reaches the optimizer 'checked'" in found["checkpoint"]
        assert "accumulate_steps and compression are given together" in found["compression"]
        assert "Take stage=1" in found["adasum"]


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_weights_may_be_used_in_conditions_loops_and_functions(pool: WorkerPool) -> None:
    assert max(call(pool, "with_control_flow")) < 1e-5


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_loop_that_updates_weights_is_refused(pool: WorkerPool) -> None:
    for found in call(pool, "refused", among=["loop of updates"]):
        assert "A loop that is traced in a step uses the weight" in found["loop of updates"]


@pytest.mark.parametrize(("stage", "names"), [(2, ["accumulating"]), (3, ["adam", "adafactor", "accumulating"])])
@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_resuming_is_never_to_have_stopped_and_another_number_of_workers_goes_on(
    stage: int, names: list[str], forking: Forks, tmp_path: Path
) -> None:
    with start(forking, 2, stage, "native") as two:
        expected = call(two, "begun", folder=str(tmp_path / "two"), names=names)[0]
        shutil.copytree(tmp_path / "two", tmp_path / "three")
        shutil.copytree(tmp_path / "two", tmp_path / "one")
        assert call(two, "resumed", folder=str(tmp_path / "two"), names=names) == [expected, expected]
    for workers, folder in ((3, "three"), (1, "one")):
        with start(forking, workers, stage, "native") as others:
            for found in call(others, "resumed", folder=str(tmp_path / folder), names=names):
                assert set(found) == set(expected)
                for name, values in found.items():
                    for mine, theirs in zip(values, expected[name], strict=True):
                        assert flat(mine) == pytest.approx(flat(theirs), abs=1e-5), name


def flat(value: Any) -> list[float]:
    return [one for item in value for one in flat(item)] if isinstance(value, list) else [value]
