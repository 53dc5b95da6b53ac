"""The federated recipes, from Python and by the command."""

import runpy
import sys
from pathlib import Path

import keras
import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tfdist.cli.federated import command as federated_command
from tfdist.errors import ConfigError
from tfdist.federated import simulate
from tfdist.federated.round_history import read_rounds

RECIPES = Path(__file__).parents[2] / "strategies"


def test_authors_train_without_a_download() -> None:
    recipe = runpy.run_path(str(RECIPES / "authors" / "train.py"))
    found = simulate(recipe["texts"](400), rounds=1)
    assert found.rounds[0].examples == 8 * (360 - 10)  # the first 360 characters of each, in stretches
    assert 0 < found.rounds[0].evaluation["accuracy"] < 1


def test_private_clients_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the card, of one task at a small setting."""
    recipe = runpy.run_path(str(RECIPES / "private_clients" / "train.py"))
    recipe["compare"](recipe["tumours"](40), rounds=2, budgets=[50])
    rows = capsys.readouterr().out.splitlines()
    kinds = ("one place", "federated", "median", "epsilon 50")
    assert [kind in row for row, kind in zip(rows[1:], kinds, strict=True)] == [True] * 4


def test_the_command_runs_the_recipe_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = RECIPES / "hospitals" / "train.py"
    out = tmp_path / "out"
    arguments = ["simulate", str(recipe), "--clients", "3", "--output", str(out)]
    first = CliRunner().invoke(federated_command, [*arguments, "--rounds", "1", "--export", f"tensorboard:{out}/board"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(federated_command, [*arguments, "--rounds", "2"])
    assert isinstance(again.exception, ConfigError)
    lying = ("--liars", "0.3:label-flip")
    resumed = CliRunner().invoke(federated_command, [*arguments, "--rounds", "2", "--resume", *lying])
    assert resumed.exit_code == 0, resumed.output
    assert [one.used for one in read_rounds(out / "rounds.jsonl")] == [3, 3]
    assert {"model.keras", "rounds.png", "board"} <= {one.name for one in out.iterdir()}
    assert keras.saving.load_model(out / "model.keras").count_params() == 31 * 16 + 17
    with refused(ConfigError, name="--clients", received=6):
        CliRunner().invoke(federated_command, [*arguments, "--clients", "6"], catch_exceptions=False)
