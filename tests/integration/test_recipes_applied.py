"""Recipes in a small setting: applications, which have the losses of one device, and models in parts."""

import json
import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.integration.forks import Forks
from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.testing.installed_texts import docstrings, python_files

RECIPES = Path(__file__).parents[2] / "strategies"
TWO_WORKERS = ("--strategy", "multi-worker", "-n", "2")


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A recipe in a small setting, what runs it on several devices, and a pattern of what it says at its end."""

    options: str
    says: str
    strategies: tuple[tuple[str, ...], ...] = (TWO_WORKERS,)
    writes: bool = True  # into a folder that all runs share


APPLIED = {
    "two_towers": Applied(
        options="--packages importlib logging --epochs 2 --batch-size 64 --negatives 5 --dim 8",
        strategies=(
            ("--strategy", "model-parallel", "-n", "2", "--mesh", "batch=1,model=2"),
            ("--strategy", "parameter-server", "-n", "2", "--parameter-servers", "2"),
        ),
        says=r"right name of 100    first 0\.\d+, of ten 0\.\d+\n",
    ),
    "packed_language": Applied(
        options="--packages logging --texts 100 --epochs 1 --batch-size 32 --context 32 --blocks 1 --width 16 "
        "--heads 2",
        strategies=(("--strategy", "pipeline", "-n", "4", "--mesh", "data=2,pipeline=2"),),
        says=r"90 texts in \d+ rows; \d+ if padded\n",
    ),
    "low_rank": Applied(
        options="--package logging --rows 200 --context 16 --blocks 1 --width 16 --heads 2 --rank 2 "
        "--first-epochs 1 --epochs 2",
        says=r"trained +1,\d+ of \d+,\d+ numbers, 6 steps\n",
        writes=False,
    ),
    "skewed_fraud": Applied(
        options="--epochs 5",
        says=r"with the prior +average precision 0\.\d+, log loss [01]\.\d+, mean probability 0\.\d+ of 0.05\n",
    ),
    "augmented_pictures": Applied(
        options="--epochs 2 --batch-size 419", says=r"steps +6 of 419 pictures\n", writes=False
    ),
    "failing_machines": Applied(
        options="--machines 120 --epochs 2 --units 8", says=r"readings +\d+ to \d+ of 1\d\d machines\n"
    ),
    "dna_tracks": Applied(
        options="--sequences 96 --length 256 --filters 8 --dilated 2 --epochs 2",
        says=r"correlation +track 0 -?\d\.\d+, track 1 -?\d\.\d+\n",
    ),
    "frames": Applied(
        options="--epochs 1 --frames 3 --filters 4 --batch-size 419",
        says=r"videos +1,257 of 3 frames",
        writes=False,
    ),
}


def trained(drawing: Forks, name: str, strategy: tuple[str, ...], folder: Path) -> list[float]:
    """Run a recipe; return its losses."""
    applied = APPLIED[name]
    into = ["--output", str(folder / "data")] if applied.writes else []
    begin = ["tfdist", "run", *strategy] if strategy else []
    script = str(RECIPES / name / "train.py")
    variables = {"TFDIST_MAX_STALENESS": "0", "TFDIST_MICROBATCHES": "2"}
    with drawing.start(*begin, script, *applied.options.split(), *into, **variables) as process:
        output = process.communicate()[0].decode()
    assert process.returncode == 0, process.written[-4000:]
    assert len(re.findall(applied.says, output)) == 1, output
    (losses,) = re.findall(r"losses +([\d. ]+)\n", output)
    return [float(loss) for loss in losses.split()]


@pytest.mark.parametrize("name", APPLIED)
def test_a_recipe_has_the_losses_of_one_device(name: str, drawing: Forks, tmp_path: Path) -> None:
    one = trained(drawing, name, (), tmp_path)
    assert one == sorted(one, reverse=True)  # it learns
    for strategy in APPLIED[name].strategies:
        assert trained(drawing, name, strategy, tmp_path) == pytest.approx(one, abs=2e-4)


#: recipes of a strategy: what runs them, their small setting, and how often they say what they are there to show
SHOWN = {
    "model_parallel": (
        "--strategy model-parallel -n 2 --mesh batch=1,model=2",
        "--epochs 2 --units 64",
        (r"hidden/kernel +\(64, 64\) +\(None, 'model'\) +8,192\n", 1),  # half of 64 x 64 x 4
    ),
    "sharded_data_parallel": (
        "--strategy sharded-data-parallel -n 2",
        "--epochs 2 --width 512",
        (r"holds 1\.2 MB .* 1\.2 MB", 2),  # half of Adam's two slots
    ),
    "pipeline": (
        "--strategy pipeline -n 2",
        "--epochs 2 --most 19 --blocks 1 --width 16 --heads 2",
        (r"stage 1 begins with \S+: \d+ calls, [\d,]+ bytes\n", 1),
    ),
    "compression": ("-n 2", "--epochs 2 --compression powersgd", (r"test accuracy +0\.\d+, loss 0\.\d+\n", 1)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_recipe_of_a_strategy_learns_on_two_workers(name: str, drawing: Forks, tmp_path: Path) -> None:
    strategy, options, (said, times) = SHOWN[name]
    script = str(RECIPES / name / "train.py")
    command = ["tfdist", "run", *strategy.split(), script, *options.split(), "--output", str(tmp_path)]
    with drawing.start(*command, TFDIST_MICROBATCHES="2") as process:
        output = process.communicate()[0].decode()
    assert process.returncode == 0, process.written[-4000:]
    assert len(re.findall(said, output)) == times, output
    if (summary := tmp_path / "summary.json").exists():
        losses = json.loads(summary.read_text())["history"]["loss"]
    else:
        losses = [float(line.split(",")[1]) for line in (tmp_path / "losses.csv").read_text().splitlines()[1:]]
    assert len(losses) == 2
    assert losses[1] < losses[0]


def test_least_squares_on_two_workers_are_those_of_a_loop(drawing: Forks, tmp_path: Path) -> None:
    recipe = runpy.run_path(str(RECIPES / "least_squares" / "word_counts.py"))
    packages, size, sweeps, penalty = ["logging"], 5, 3, 1.0
    options = ["--packages", *packages, "--least", "2", "--factors", str(size), "--sweeps", str(sweeps)]
    options += ["--dtype", "float64", "--output", str(tmp_path)]
    script = str(RECIPES / "least_squares" / "train.py")
    with drawing.start("tfdist", "run", *TWO_WORKERS, script, *options) as process:
        output = process.communicate()[0].decode()
    assert process.returncode == 0, process.written[-4000:]

    rng = np.random.default_rng(17)
    rows, columns, weights, _, shape = recipe["learnt_from"](recipe["count"](packages, 2), 2.0, "float64", rng)
    confidence, preference = np.ones(shape), np.zeros(shape)
    confidence[rows, columns] += weights
    preference[rows, columns] = 1
    y = rng.normal(0, 0.01, (shape[1], size))
    for _ in range(sweeps):
        x = by_formula(confidence, preference, y, penalty)
        y = by_formula(confidence.T, preference.T, x, penalty)
    with np.load(tmp_path / "factors.npz") as found:
        assert found["pieces"] == pytest.approx(x, rel=1e-6, abs=1e-6)
        assert found["words"] == pytest.approx(y, rel=1e-6, abs=1e-6)
    recalls = re.search(r"recall of 20 words +([\d.]+); of the most frequent ([\d.]+)\n", output)
    assert recalls is not None
    assert float(recalls[1]) > float(recalls[2]) > 0


def by_formula(confidence: np.ndarray, preference: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Return (Y' C Y + penalty)^-1 Y' C p of each row, as Hu, Koren and Volinsky (2008) write it."""
    return np.stack(
        [
            np.linalg.solve((y.T * c) @ y + penalty * np.eye(y.shape[1]), (y.T * c) @ p)
            for c, p in zip(confidence, preference, strict=True)
        ]
    )


@pytest.mark.quick
def test_texts_are_those_of_a_package_that_is_installed() -> None:
    assert any(text.startswith("Logging package for Python") for text in docstrings("logging"))
    for name in ("no_such_package", "logging.handlers", "."):
        with refused(ConfigError, name="package", received=name):
            python_files(name)
