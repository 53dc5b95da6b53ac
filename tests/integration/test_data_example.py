"""The program in docs/data.md, run as it stands there: its commands, then its code, under a strategy."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.forks import Forks

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 800
COLOURS = {"äpfel": (200, 40, 40), "bananas": (220, 200, 40), "limes": (60, 180, 60)}


def blocks() -> tuple[list[str], list[str], str]:
    """The commands before the code and behind it, and the code."""
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.partition("\n## From pictures to a model\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in found] == ["", "python", "python", ""]
    before, code, resumed, behind = (text for _, text in found)
    return before.splitlines(), behind.splitlines(), code + resumed


def pictures(folder: Path, count: int, seed: int) -> None:
    """Make pictures of many sizes, JPEG and PNG, whose class is their colour."""
    random = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            height, width = random.integers(20, 70, 2)
            pixels = np.clip(colour + random.normal(0, 30, (height, width, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{('jpg', 'png')[number % 2]}")


def run(command: list[str], folder: Path) -> str:
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    environ = {**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        command, cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:  # the launcher ends its workers when it is asked to
            process.terminate()
            process.wait(timeout=60)
    assert process.returncode == 0, f"{shlex.join(command)}\n{output[-2000:]}\n{errors[-4000:]}"
    return output


@pytest.mark.readme("tfdist data write photos data", "tfdist data info data/train", "tfdist data verify data/train")
def test_what_the_page_says_of_data(forking: Forks, tmp_path: Path) -> None:
    pictures(tmp_path / "photos" / "train", 25, seed=0)
    pictures(tmp_path / "photos" / "test", 7, seed=1)
    before, behind, code = blocks()
    said = {}
    tfdist = [sys.executable, "-m", "tfdist"]
    for line in before:
        name, *arguments = shlex.split(line, comments=True)
        assert name == "tfdist"
        said[" ".join(arguments)] = run([*tfdist, *arguments], tmp_path)
    assert "data/train has 75 examples" in said["data write photos data"]
    assert "data/test has 21 examples" in said["data write photos data"]
    assert "bananas" in said["data info data/train"]

    (tmp_path / "train.py").write_text(code + "print('state', state)\nprint('steps', train.steps_per_epoch)\n")
    launched = ["tfdist", "run", "--strategy", "mirrored", "--replicas-per-worker", "2", "train.py"]
    with forking.start(*launched, cwd=tmp_path) as process:
        output = process.communicate(DEADLINE_SECONDS)[0].decode()
    assert process.returncode == 0, process.written[-4000:]
    assert "'epoch': 19, 'consumed': 75" in output
    assert "steps 5" in output
    accuracy = [float(value) for value in re.findall(r"val_accuracy: ([\d.]+)", output)]
    assert len(accuracy) == 20
    assert max(accuracy[-5:]) >= 0.9, accuracy

    said = {line: run([*tfdist, *shlex.split(line, comments=True)[1:]], tmp_path) for line in behind}
    assert all("sound" in text for text in said.values()), said
