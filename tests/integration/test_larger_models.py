"""What the README shows of models larger than a device: the commands run, and have the losses of one device."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.integration.forks import Forks

SCRIPT = Path(__file__).parent / "cases" / "larger.py"
RUNS = (
    "tfdist run --strategy model-parallel -n 4 --mesh batch=2,model=2 train.py",
    "tfdist run --strategy sharded-data-parallel -n 4 train.py",
    "tfdist run --strategy pipeline -n 4 --mesh data=2,pipeline=2 train.py",
)


@pytest.fixture(scope="module")
def one_device(forking: Forks) -> list[float]:
    return losses(forking, str(SCRIPT))


def losses(forking: Forks, *command: str, cwd: Path | None = None) -> list[float]:
    with forking.start(*command, cwd=cwd) as process:
        output, errors = process.communicate(600)
    assert process.returncode == 0, errors.decode(errors="replace")[-4000:]
    (found,) = set(re.findall(r"losses (.*)", output.decode()))  # all processes say the same
    return [float(one) for one in found.split()]


@pytest.mark.parametrize("command", [pytest.param(one, marks=pytest.mark.readme(one)) for one in RUNS])
def test_four_processes_have_the_losses_of_one_device(
    command: str, forking: Forks, one_device: list[float], tmp_path: Path
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    assert losses(forking, *shlex.split(command), cwd=tmp_path) == pytest.approx(one_device, rel=1e-5)
