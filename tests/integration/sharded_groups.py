"""Groups of workers, and checks in them, for both test files of sharded data parallelism."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.forks import Forks
from tfdist.testing.pool import WorkerPool
from tfdist.variables import COLLECTIVES, SHARDING_STAGE

DEADLINE_SECONDS = 900
Group = tuple[int, int, str]  # workers, stage and what carries tensors
# for what carries tensors, and shares the rest with the others; the first of each list is trained on uneven rows
OVER_OTHERS = {
    "horovod": [("distributed, accumulating", "plain"), ("adam, clipnorm", "plain")],
    "tensorflow": [("distributed, accumulating", "plain"), ("adafactor", "table")],
}
call = functools.partial(case_pools.call, of="sharded_cases")


def start(forking: Forks, workers: int, stage: int, collectives: str) -> WorkerPool:
    variables = {COLLECTIVES.name: collectives, SHARDING_STAGE.name: str(stage)}
    return case_pools.start(forking, "sharded-data-parallel", workers, **variables)


def within(*groups: Group) -> pytest.MarkDecorator:
    """Run a test in each group, whose processes are those of the fixture `pool`."""
    names = [f"{workers} workers, stage {stage}, {collectives}" for workers, stage, collectives in groups]
    return pytest.mark.parametrize("pool", groups, indirect=True, ids=names)


def require_the_numbers_of_one_device(pool: WorkerPool, cases: list[tuple[str, str]]) -> None:
    found = call(pool, "differences", cases=cases)[0]
    assert len(found) == len(cases)
    assert max(found.values()) < 1e-5, {name: value for name, value in found.items() if value >= 1e-5}


def require_the_memory_of_the_formula(pool: WorkerPool, *, layers: int) -> None:
    for found in call(pool, "memory_of_a_step", layers=layers, units=768):
        if found is None:
            pytest.skip("TensorFlow does not count the memory of this kind of processor")
        # the allocator rounds what lies there for long up, to pieces that are there
        assert found["weights and slots"] * 0.99 < found["rest"] < found["weights and slots"] * 1.15
        assert found["weights and slots"] + found["step"] == pytest.approx(found["formula"], rel=0.05)


def require_that_a_saved_model_is_one_devices(pool: WorkerPool, folder: Path, names: list[str]) -> None:
    found = call(pool, "saved", folder=str(folder), names=names)[0]
    assert len(found) == len(names)
    assert max(found.values()) < 1e-5, found


def require_that_training_goes_on(forking: Forks, folder: Path, *, stage: int, names: list[str]) -> None:
    """Check that training resumes with the same number of workers as if it had never stopped, and with more and fewer.

    Of several optimizers, the first resumes with more workers, and the last with fewer.
    """
    with start(forking, 2, stage, "native") as two:
        expected = call(two, "begun", folder=str(folder / "two"), names=names)[0]
        shutil.copytree(folder / "two", folder / "three")
        shutil.copytree(folder / "two", folder / "one")
        assert call(two, "resumed", folder=str(folder / "two"), names=names) == [expected, expected]
    for workers, copy, name in ((3, "three", names[0]), (1, "one", names[-1])):
        with start(forking, workers, stage, "native") as others:
            for found in call(others, "resumed", folder=str(folder / copy), names=[name]):
                assert set(found) == {name}
                for name, values in found.items():
                    for mine, theirs in zip(values, expected[name], strict=True):
                        assert flat(mine) == pytest.approx(flat(theirs), abs=1e-5), name


def flat(value: Any) -> list[float]:
    return [one for item in value for one in flat(item)] if isinstance(value, list) else [value]
