"""`tfdist.reproducible`: what is started twice comes to the same bits, also when workers come late at other times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.light import python_path

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "cases" / "reproducible_jobs.py"
DEADLINE_SECONDS = 800


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TFDIST_", "HOROVOD_")) and k != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("jobs"))],
        env={**kept, "PYTHONPATH": python_path(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    for name, digests in answer.items():
        assert all(isinstance(digest, str) for digest in digests), f"{name}: {digests}\n{done.stderr[-4000:]}"
    return answer


@pytest.mark.parametrize("strategy", ["mirrored", "multi-worker", "ring"])
def test_two_runs_are_equal_to_the_bit(found: dict[str, list[str]], strategy: str) -> None:
    assert len(set(found[strategy])) == 1, "the workers differ among themselves"
    assert found[f"{strategy} again"] == found[strategy]


def test_another_seed_is_another_training(found: dict[str, list[str]]) -> None:
    assert found["mirrored, another seed"] != found["mirrored"]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("a layer", "comes too late: Keras has made a dense"),
        ("a tensor", "comes too late: TensorFlow has begun"),
        ("tuning", "HOROVOD_AUTOTUNE is 1"),
    ],
)
def test_what_cannot_be_promised_is_refused(found: dict[str, list[str]], before: str, said: str) -> None:
    assert said in found[before][0]
