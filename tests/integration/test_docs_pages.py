"""The pages of the docs that show programs, run as they stand there: the tutorial, moving to tfdist, and guides."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests import readme
from tests.integration.agents import says
from tests.integration.forks import Forks
from tests.programs_before import sides

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language, or the commands, which name none."""
    return readme.fenced((DOCS / page).read_text(encoding="utf-8"), language)


@pytest.mark.parametrize("page", ["tf-distribute", "horovod", "accelerate", "ray-train", "tff", "streaming"])
def test_what_one_moves_to_runs(page: str, forking: Forks, tmp_path: Path) -> None:
    before, after = sides(page)
    ast.parse(before)
    script = tmp_path / "train.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{after}\n")
    assert forking.run(str(script)) == 0, forking.output[-3000:]
    assert "Epoch 2/2" in forking.output or "model.fit" not in after
    if "model.save" in after:
        assert (tmp_path / "model.keras").is_file()


@pytest.mark.parametrize(("page", "status"), [("tf-distribute", 0), ("horovod", 1)])
def test_what_one_moves_from_does_what_the_page_says(page: str, status: int, forking: Forks, tmp_path: Path) -> None:
    """The other programs need packages that are not installed; tests/programs_before.py runs them."""
    script = tmp_path / "train.py"
    script.write_text(sides(page)[0])
    assert forking.run(str(script)) == status, forking.output[-3000:]
    assert ("RuntimeError" if status else "Epoch 2/2") in forking.output


GUIDES = [
    (page, place)
    for page in ("compression.md", "large-batch.md", "large-batch-tune.md", "monitoring-exporters.md", "precision.md")
    for place in range(len(blocks(page, "python")))
]


@pytest.mark.parametrize(("page", "place"), GUIDES)
def test_what_a_guide_shows_runs(page: str, place: int, forking: Forks, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{blocks(page, 'python')[place]}")
    assert forking.run(str(script)) == 0, forking.output[-3000:]


PASTED = [block for page in ("../README.md", "tour.md") for block in blocks(page, "python")]


@pytest.mark.parametrize("place", range(len(PASTED)))
def test_a_block_of_the_readme_runs_as_it_is_pasted(place: int, forking: Forks, tmp_path: Path) -> None:
    script = tmp_path / "pasted.py"
    steps = "print('updates', int(model.optimizer.iterations.numpy()))"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{PASTED[place]}\n{steps}\n")
    assert forking.run(str(script)) == 0, forking.output[-3000:]
    epochs = int(re.search(r"epochs=(\d+)", PASTED[place])[1])
    assert f"Epoch {epochs}/{epochs}" in forking.output
    if "accumulate_steps=4" in PASTED[place]:
        assert "updates 20" in forking.output


def test_every_block_of_the_readme_is_pasted() -> None:
    assert len(PASTED) >= 4
    guide = blocks("fault-tolerance.md", "python")[0]
    assert guide in PASTED


def numbers(word: str, output: str) -> list[float]:
    (found,) = re.findall(rf"^(?:\[worker 0\] )?{word} ([\d. ]+)$", output, re.MULTILINE)
    return [float(number) for number in found.split()]


def test_the_tutorial(drawing: Forks, tmp_path: Path) -> None:
    """One process, and two of which one is killed: the same losses. The other commands are parts of the last."""
    code = "\n".join(blocks("tutorial.md", "python"))
    commands = [line for block in blocks("tutorial.md", "") for line in block.splitlines()]
    assert "python train.py" in commands
    with_a_fault = commands[-1]
    assert [line for line in commands if line.startswith("tfdist run") and line not in with_a_fault] == [
        "tfdist run --strategy multi-worker -n 2 train.py"
    ]

    (tmp_path / "train.py").write_text(code)
    with drawing.start("train.py", cwd=tmp_path) as process:
        process.wait()
    alone = process.written
    assert process.returncode == 0, alone[-4000:]
    losses, accuracy = numbers("loss", alone), numbers("accuracy", alone)
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 3
    assert accuracy[-1] > 0.85
    assert not list((tmp_path / "backup").glob("*")), "the backup is removed when training has ended"

    variable, *command = shlex.split(with_a_fault)
    assert variable.startswith("TFDIST_FAULTS=")
    assert command[0] == "tfdist"
    with drawing.start(*command, cwd=tmp_path, **dict([variable.split("=", 1)])) as process:
        process.wait()
    done = process.written
    assert process.returncode == 0, done[-4000:]
    assert says(done, "worker 1 ", "SIGKILL")
    assert says(done, "2 workers step again")
    assert numbers("loss", done) == pytest.approx(losses, abs=1e-3)
