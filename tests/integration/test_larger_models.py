"""The README's commands for models larger than a device: they run, and have the losses of one device."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.forks import Forks
from tfdist.cli.main import main
from tfdist.planner.layer_profile import LayerProfile, Profile

SCRIPT = Path(__file__).parent / "cases" / "larger.py"
RUNS = (
    "tfdist run --strategy model-parallel -n 4 --mesh batch=2,model=2 train.py",
    "tfdist run --strategy sharded-data-parallel -n 4 train.py",
    "tfdist run --strategy pipeline -n 4 --mesh data=2,pipeline=2 train.py",
)


@pytest.fixture(scope="module")
def one_device(forking: Forks) -> list[float]:
    return losses(forking, str(SCRIPT))


def losses(forking: Forks, *command: str, cwd: Path | None = None, **environment: str) -> list[float]:
    with forking.start(*command, cwd=cwd, **environment) as process:
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


def test_the_command_of_a_plan_with_a_model_axis_has_them_too(
    forking: Forks, one_device: list[float], tmp_path: Path
) -> None:
    wide = LayerProfile(name="wide", parameter_bytes=576, kept_bytes=64, output_bytes=64, divides=16, **seconds(1e-3))
    narrow = LayerProfile(name="narrow", inputs=(0,), parameter_bytes=68, output_bytes=4, divides=1, **seconds(1e-3))
    loss = LayerProfile(name="(loss)", inputs=(1,), may_begin_stage=False, **seconds(0.0))
    profile = Profile(
        model="m", batch=16, batch_sizes=(16,), layers=(wide, narrow, loss), whole_seconds=(4e-3,), slot_bytes=1288
    )
    shutil.copy(SCRIPT, tmp_path / "train.py")
    (tmp_path / "costs.json").write_text(profile.to_json(), encoding="utf-8")
    files = ["--profile", str(tmp_path / "costs.json"), "train.py"]
    options = ["--devices", "4", "--memory", "1800", "--link", "10gbit", "--microbatches", "4"]  # nothing else fits
    planned = CliRunner().invoke(main, ["parallel", "plan", *options, *files])
    assert planned.exit_code == 0, planned.output
    words = shlex.split(next(line for line in planned.stdout.splitlines() if "tfdist run" in line))
    place = words.index("tfdist")
    assert words[place:] == shlex.split("tfdist run --strategy pipeline -n 4 --mesh pipeline=2,model=2 train.py")
    variables = dict(word.split("=", 1) for word in words[:place])
    assert losses(forking, *words[place:], cwd=tmp_path, **variables) == pytest.approx(one_device, rel=1e-5)


def seconds(each: float) -> dict[str, tuple[float]]:
    return {"forward_seconds": (each,), "backward_seconds": (each,)}
