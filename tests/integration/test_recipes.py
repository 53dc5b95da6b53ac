"""The recipes under strategies/ as a user runs them: they learn, they say so, and they agree with each other."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "tfdist", "run"]


def demo() -> list[str]:
    """What `make demo` runs, up to the script."""
    line = re.search(r"^demo:.*\n\t@\$\(BIN\)/tfdist (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1])
    script = words.index("strategies/multi_worker_mirrored/train.py")
    assert words[script + 1 :] == ["--output", "runs/demo"]
    return [sys.executable, "-m", "tfdist", *words[:script]]


COMMANDS = {
    "single_device": [sys.executable],
    "mirrored": [*RUN, "--strategy", "mirrored", "--replicas-per-worker", "2"],
    "multi_worker_mirrored": demo(),
    "ring_all_reduce": [*RUN, "--strategy", "ring", "-n", "2"],
    "parameter_server": [*RUN, "--strategy", "parameter-server", "-n", "2", "--parameter-servers", "2"],
}
COMMANDS["parameter_server synchronous"] = COMMANDS["parameter_server"]
COMMANDS["elastic"] = [*COMMANDS["multi_worker_mirrored"], "--max-restarts", "3"]
VARIABLES = {
    "parameter_server synchronous": {"TFDIST_MAX_STALENESS": "0"},
    # a worker is killed in the middle, and nobody would know from the result
    "elastic": {"TFDIST_FAULTS": json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 57}])},
}
# the demo as it stands, and of each other a part that is enough to compare; an epoch has 20 steps
EPOCHS = dict.fromkeys(COMMANDS, 6) | {"multi_worker_mirrored": 20}
WORKERS = {
    "single_device": "1, 1 replica in all",
    "mirrored": "1, 2 replicas in all",
    "multi_worker_mirrored": "2, 2 replicas in all",
    "ring_all_reduce": "2, 2 replicas in all",
    "parameter_server": "2, 1 replica in all",
    "parameter_server synchronous": "2, 1 replica in all",
    "elastic": "2, 2 replicas in all",
}
RECOMMENDER = ROOT / "strategies" / "parameter_server" / "recommender.py"
DEADLINE_SECONDS = 280
TRAINING, VALIDATION = (0x1F, 0x5F, 0x9E), (0xD1, 0x60, 0x2B)  # the colours of the curves
FIRST_TEST_LABELS = [3, 7, 3, 4, 6, 6, 2, 7, 3, 6, 0, 4]

pytestmark = pytest.mark.timeout(DEADLINE_SECONDS + 20)


@dataclass(frozen=True)
class Result:
    """What a recipe printed and left."""

    output: str
    folder: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Runs a recipe, once for all tests that look at it."""

    @cache
    def run(recipe: str) -> Result:
        folder = tmp_path_factory.mktemp(recipe.replace(" ", "-"))
        script = ROOT / "strategies" / recipe.split()[0] / "train.py"
        command = [*COMMANDS[recipe], str(script), "--output", str(folder)]
        if recipe != "multi_worker_mirrored":
            command += ["--epochs", str(EPOCHS[recipe])]
        output = finished(command, VARIABLES.get(recipe, {}))
        return Result(output=output, folder=folder, summary=json.loads((folder / "summary.json").read_text()))

    return run


def finished(command: list[str], variables: dict[str, str]) -> str:
    """Run a recipe to its end; return what it printed."""
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
    environ = {**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    process = subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:  # the launcher ends its workers when it is asked to
            process.terminate()
            process.wait(timeout=15)
    assert process.returncode == 0, errors[-4000:]
    return output


@pytest.mark.parametrize("recipe", [pytest.param("single_device", marks=pytest.mark.quick), *list(COMMANDS)[1:]])
def test_a_recipe_learns_and_says_so(recipe: str, trained: Callable[[str], Result]) -> None:
    result = trained(recipe)
    printed = dict(re.findall(r"^(?:\[(?:worker 0|chief)\] )?(\w[\w ]+?)  +(\S.*)$", result.output, re.MULTILINE))
    assert float(printed["test accuracy"]) >= (0.97 if EPOCHS[recipe] == 20 else 0.9)
    assert float(printed["test accuracy"]) == pytest.approx(result.summary["accuracy"], abs=1e-4)
    assert float(printed["examples per second"].replace(",", "")) > 0
    assert printed["steps"] == str(20 * EPOCHS[recipe])
    assert printed["workers"] == WORKERS[recipe]
    assert str(result.folder / "loss.png") in result.output


@pytest.mark.parametrize("recipe", list(COMMANDS))
def test_progress_is_shown_once(recipe: str, trained: Callable[[str], Result]) -> None:
    output = trained(recipe).output
    epochs = EPOCHS[recipe]
    assert output.count(f"Epoch 1/{epochs}\n") == output.count(f"Epoch {epochs}/{epochs}\n") == 1
    assert output.count("test accuracy") == 1


@pytest.mark.parametrize("recipe", list(COMMANDS))
def test_the_picture_shows_both_curves(recipe: str, trained: Callable[[str], Result]) -> None:
    with Image.open(trained(recipe).folder / "loss.png") as picture:
        assert picture.size == (1600, 1000)
        pixels = np.asarray(picture.convert("RGB"))
    for colour in (TRAINING, VALIDATION):
        columns = np.flatnonzero((pixels == colour).all(axis=-1).any(axis=0))
        assert columns.max() - columns.min() > 1000, "the curve does not cross the picture"


@pytest.mark.parametrize("recipe", ["mirrored", "ring_all_reduce", "parameter_server synchronous", "elastic"])
def test_a_strategy_trains_to_the_numbers_of_one_device(recipe: str, trained: Callable[[str], Result]) -> None:
    one, several = trained("single_device").summary, trained(recipe).summary
    # The sums of a step are rounded in another order, and Adam makes a whole step of a gradient that is nearly zero;
    # the matrix compares more closely.
    assert several["history"]["loss"][0] == pytest.approx(one["history"]["loss"][0], abs=1e-5)
    for name in ("loss", "val_loss"):
        assert several["history"][name][:4] == pytest.approx(one["history"][name][:4], abs=1e-3)
    assert several["history"]["loss"] == pytest.approx(one["history"]["loss"], abs=5e-3)
    assert several["loss"] == pytest.approx(one["loss"], abs=2e-2)
    assert several["accuracy"] == pytest.approx(one["accuracy"], abs=1e-2)


def test_the_recommender_finds_more_than_what_is_popular(tmp_path: Path) -> None:
    model, picture = tmp_path / "model.keras", tmp_path / "curves.png"
    sizes = ["--users", "1000", "--items", "1000", "--batch-size", "256", "--epochs", "3"]
    output = finished([sys.executable, str(RECOMMENDER), *sizes, "--save", str(model), "--plot", str(picture)], {})
    recall = {
        name: float(value) for name, value in re.findall(r"^(\w[\w ]+?)  +([\d.]+)  +[\d.]+$", output, re.MULTILINE)
    }
    assert recall["most popular"] * 1.2 < recall["recommender"] < recall["true tastes"]
    assert set(re.findall(r"^kind/embeddings +\d/2 +\(500, 16\) +(\d) +32000$", output, re.MULTILINE)) == {"0", "1"}
    steps = sum(int(steps) for steps in re.findall(r"^(\d+)/\1 - ", output, re.MULTILINE))
    assert f"staleness     {steps} gradients, " in output
    assert "lost workers  0" in output
    with Image.open(picture) as image:
        assert image.size == (1800, 540)

    import keras

    loaded = keras.models.load_model(model)
    user, items = np.array([7], np.int32), np.arange(1000, dtype=np.int32)[np.newaxis]
    scores = loaded.predict((user, items, np.zeros((1, 1000), np.float32)), verbose=0)
    assert scores.std() > 0.5  # untrained ones are near 0


@pytest.mark.quick
def test_the_split_is_fixed_and_complete() -> None:
    from sklearn import datasets

    from tfdist.testing import digits

    data = digits.load_digits()
    parts = [data.train_images, data.validation_images, data.test_images]
    assert [len(part) for part in parts] == [1257, 180, 360]
    assert data.test_labels[:12].tolist() == FIRST_TEST_LABELS
    together = np.concatenate(parts)[..., 0] * 16
    assert sorted(map(bytes, together.astype(np.uint8))) == sorted(
        map(bytes, datasets.load_digits().images.astype(np.uint8))
    )
