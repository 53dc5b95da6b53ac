"""`tfdist.reproducible`: what is started twice comes to the same bits, also when workers come late at other times."""

import json
from pathlib import Path

import pytest

from tests.integration.agents import says
from tests.integration.forks import Forks

SCRIPT = Path(__file__).parent / "cases" / "reproducible_jobs.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, forking: Forks) -> dict[str, list[str]]:
    with forking.start(str(SCRIPT), str(tmp_path_factory.mktemp("jobs"))) as process:
        out, err = process.communicate()
    said = err.decode()[-4000:]
    assert process.returncode == 0, said
    answer: dict[str, list[str]] = json.loads(out.decode().splitlines()[-1])
    for name, digests in answer.items():
        assert all(isinstance(digest, str) for digest in digests), f"{name}: {digests}\n{said}"
    return answer


@pytest.mark.parametrize("strategy", ["mirrored", "multi-worker", "ring"])
def test_two_runs_are_equal_to_the_bit(found: dict[str, list[str]], strategy: str) -> None:
    assert len(set(found[strategy])) == 1, "the workers differ among themselves"
    assert found[f"{strategy} again"] == found[strategy]


def test_another_seed_is_another_training(found: dict[str, list[str]]) -> None:
    assert found["mirrored, another seed"] != found["mirrored"]


@pytest.mark.parametrize(
    ("before", "facts"),
    [
        ("a layer", ("too late: ", "Keras ", "dense")),
        ("a tensor", ("too late: ", "TensorFlow ")),
        ("tuning", ("HOROVOD_AUTOTUNE is 1",)),
    ],
)
def test_what_cannot_be_promised_is_refused(found: dict[str, list[str]], before: str, facts: tuple[str, ...]) -> None:
    assert says(found[before][0], *facts)
