"""The recipes under strategies/ as a user runs them: they learn, they say so, and they agree with each other."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.integration.agents import says
from tests.integration.forks import OPTIMIZED, Forks

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "tfdist", "run"]


def demo() -> list[str]:
    """Return the command of `make demo`, up to the script."""
    line = re.search(r"^demo:.*\n\t@\$\(BIN\)/tfdist (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1])
    script = words.index("strategies/digits/train.py")
    assert words[script + 1 :] == ["--output", "runs/demo"]
    return [sys.executable, "-m", "tfdist", *words[:script]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a recipe: its command, options and variables; an epoch has 20 steps. `shown`: in the README."""

    script: str
    command: list[str]
    workers: str
    options: tuple[str, ...] = ("--epochs", "4")  # enough to compare
    variables: dict[str, str] = field(default_factory=dict)
    epochs: int = 4
    steps: int = 80
    shown: tuple[str, ...] = ()


RUNS = {
    "one device": Run(
        script="digits", command=[sys.executable], workers="1, 1 replica in all", shown=("python train.py",)
    ),
    "demo": Run(  # as it stands, but for its length
        script="digits",
        command=demo(),
        options=("--epochs", "8"),
        epochs=8,
        steps=160,
        workers="2, 2 replicas in all",
        shown=("make demo", "tfdist run --strategy multi-worker -n 2 train.py"),
    ),
    "mirrored": Run(
        script="mirrored",
        command=[*RUN, "--strategy", "mirrored", "--replicas-per-worker", "2"],
        workers="1, 2 replicas in all",
        shown=("tfdist run --strategy mirrored --replicas-per-worker 2 train.py",),
    ),
    "multi-worker": Run(
        script="multi_worker_mirrored",
        command=[*RUN, "--strategy", "multi-worker", "-n", "2", "--max-restarts", "3"],
        # a worker is killed in the middle, and nobody would know from the result
        variables={"TFDIST_FAULTS": json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 57}])},
        workers="2, 2 replicas in all",
    ),
    "ring": Run(
        script="ring_all_reduce",
        command=[*RUN, "--strategy", "ring", "-n", "2"],
        options=("--epochs", "6", "--wire-dtype", "bfloat16", "--accumulate-steps", "2", "--reduction", "adasum"),
        workers="2, 2 replicas in all",
        epochs=6,
        steps=60,
        shown=("tfdist run --strategy ring -n 2 train.py",),
    ),
    "parameter-server": Run(
        script="digits",
        command=[*RUN, "--strategy", "parameter-server", "-n", "2", "--parameter-servers", "2"],
        variables={"TFDIST_MAX_STALENESS": "0"},
        workers="2, 1 replica in all",
        shown=("tfdist run --strategy parameter-server -n 2 train.py",),
    ),
}
AS_A_USER = "demo"
RECOMMENDER = ROOT / "strategies" / "parameter_server" / "train.py"
DEADLINE_SECONDS = 800
TRAINING, VALIDATION = (0x1F, 0x5F, 0x9E), (0xD1, 0x60, 0x2B)  # the colours of the curves
FIRST_TEST_LABELS = [3, 7, 3, 4, 6, 6, 2, 7, 3, 6, 0, 4]


@dataclass(frozen=True)
class Result:
    """The output of a recipe, its folder and its summary."""

    output: str
    folder: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, drawing: Forks) -> Callable[[str], Result]:
    """Runs a recipe, once for all tests that look at it; one as a user does, the others in forks."""

    @cache
    def run(name: str) -> Result:
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        recipe = RUNS[name]
        script = ROOT / "strategies" / recipe.script / "train.py"
        command = [*recipe.command, str(script), "--output", str(folder), *recipe.options]
        if name == AS_A_USER:
            output = finished(command, recipe.variables)
        else:
            in_fork = ["chief", *command[1:]] if command[1] == str(script) else ["tfdist", *command[3:]]
            with drawing.start(*in_fork, **recipe.variables, **{OPTIMIZED: "1"}) as process:
                output = process.communicate(DEADLINE_SECONDS)[0].decode()
            assert process.returncode == 0, process.written[-4000:]
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
            process.wait(timeout=60)
    assert process.returncode == 0, errors[-4000:]
    return output


@pytest.mark.quick
def test_what_runs_a_recipe_is_what_the_readme_shows() -> None:
    for run in RUNS.values():
        for shown in (command.split() for command in run.shown if command.startswith("tfdist ")):
            assert run.command[3 : len(shown) + 1] == shown[1:-1]


def of_the_readme(name: str) -> list[pytest.MarkDecorator]:
    quick = [pytest.mark.quick] if name == "one device" else []
    return [pytest.mark.readme(*RUNS[name].shown), *quick]


@pytest.mark.parametrize("name", [pytest.param(name, marks=of_the_readme(name)) for name in RUNS])
def test_a_recipe_learns_and_says_so_once(name: str, trained: Callable[[str], Result]) -> None:
    result, asked = trained(name), RUNS[name]
    printed = dict(re.findall(r"^(?:\[(?:worker 0|chief)\] )?(\w[\w ]+?)  +(\S.*)$", result.output, re.MULTILINE))
    assert float(printed["test accuracy"]) >= (0.95 if name == "demo" else 0.9)
    assert float(printed["test accuracy"]) == pytest.approx(result.summary["accuracy"], abs=1e-4)
    assert float(printed["examples per second"].replace(",", "")) > 0
    assert printed["steps"] == str(asked.steps)
    assert printed["workers"] == asked.workers
    assert str(result.folder / "loss.png") in result.output
    for line in (f"Epoch 1/{asked.epochs}\n", f"Epoch {asked.epochs}/{asked.epochs}\n", "test accuracy"):
        assert result.output.count(line) == 1
    with Image.open(result.folder / "loss.png") as picture:
        assert picture.size == (1600, 1000)
        pixels = np.asarray(picture.convert("RGB"))
    for colour in (TRAINING, VALIDATION):
        columns = np.flatnonzero((pixels == colour).all(axis=-1).any(axis=0))
        assert columns.max() - columns.min() > 900, "the curve does not cross the picture"


def test_the_ring_tells_what_it_has_sent(trained: Callable[[str], Result]) -> None:
    """Two bytes of each of 65,994 gradients in each of 60 updates: half of the epochs' batches, half of float32."""
    assert says(trained("ring").output, "sent by a worker", " 7.9 MB ", " 60 updates")


@pytest.mark.parametrize("name", ["multi-worker", "parameter-server"])
def test_a_strategy_trains_to_the_numbers_of_one_device(name: str, trained: Callable[[str], Result]) -> None:
    one, several = trained("one device").summary, trained(name).summary
    # The sums of a step are rounded in another order, and Adam makes a whole step of a gradient that is nearly zero;
    # the matrix compares more closely.
    assert several["history"]["loss"][0] == pytest.approx(one["history"]["loss"][0], abs=1e-5)
    for name in ("loss", "val_loss"):
        assert several["history"][name][:4] == pytest.approx(one["history"][name][:4], abs=1e-3)
    assert several["history"]["loss"] == pytest.approx(one["history"]["loss"], abs=5e-3)
    assert several["loss"] == pytest.approx(one["loss"], abs=2e-2)
    assert several["accuracy"] == pytest.approx(one["accuracy"], abs=1e-2)


def test_a_transformer_in_parts_has_the_losses_of_one_device(forking: Forks, tmp_path: Path) -> None:
    small = ["--epochs", "1", "--batch-size", "512", "--context", "16", "--blocks", "1", "--width", "16"]
    command = [str(ROOT / "strategies" / "transformer" / "train.py"), *small, "--output", str(tmp_path)]
    mesh = ["--strategy", "model-parallel", "-n", "2", "--mesh", "batch=1,model=2"]
    found = []
    for begin in ([], ["tfdist", "run", *mesh]):
        assert forking.run(*begin, *command) == 0, forking.output[-4000:]
        found.append(re.findall(r"test (?:loss|accuracy) +([\d.]+)", forking.output))
        found[-1] += (tmp_path / "losses.csv").read_text().split(",")[-1:]
    one, parts = np.array(found, np.float64)
    assert one == pytest.approx(parts, abs=2e-4)
    assert one[0] < 4.2  # log(96) is 4.56
    assert re.search(r"query/kernel +\(16, 4, 4\) +\(None, 'model', None\) +512\n", forking.output)


def test_the_recommender_finds_more_than_what_is_popular(drawing: Forks, tmp_path: Path) -> None:
    model, picture = tmp_path / "model.keras", tmp_path / "curves.png"
    sizes = ["--users", "1000", "--items", "1000", "--batch-size", "256", "--epochs", "3"]
    options = [*sizes, "--save", str(model), "--plot", str(picture)]
    with drawing.start("chief", str(RECOMMENDER), *options) as process:
        output = process.communicate(DEADLINE_SECONDS)[0].decode()
    assert process.returncode == 0, process.written[-4000:]
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
