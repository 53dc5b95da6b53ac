"""The recipe of large batches: it learns under a strategy, and its comparison leaves what its card shows."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.forks import Forks
from tests.integration.test_recipes import ROOT

RECIPE = ROOT / "strategies" / "large_batch"
METHODS = ["base", "none", "linear", "sgd", "lars", "lamb"]


@pytest.mark.parametrize(
    ("data", "method", "epochs", "said", "least"),
    [
        ("cancer", "linear", "10", "linear scaling of the rate and a warm-up", 0.9),
        ("digits", "lars", "3", "LARS", 0.4),
    ],
)
def test_the_large_batch_learns_on_replicas(
    data: str, method: str, epochs: str, said: str, least: float, drawing: Forks
) -> None:
    mirrored = ["tfdist", "run", "--strategy", "mirrored", "--replicas-per-worker", "2"]
    options = ["--data", data, "--method", method, "--epochs", epochs]
    assert drawing.run(*mirrored, str(RECIPE / "train.py"), *options) == 0, drawing.output[-4000:]
    found = re.search(rf"{said}.*: test accuracy (0\.\d+)", drawing.output)
    assert found
    assert float(found[1]) > least


def test_the_comparison_is_a_table_and_a_picture(drawing: Forks, tmp_path: Path) -> None:
    options = ["--data", "cancer", "--seeds", "1", "--rates", "1", "--epochs", "2", "--output", str(tmp_path)]
    with drawing.start("chief", str(RECIPE / "compare.py"), *options) as process:  # a chief may draw
        output = process.communicate()[0].decode()
    assert process.returncode == 0, process.written[-4000:]
    report = json.loads((tmp_path / "comparison.json").read_text())["data"]["cancer"]
    assert list(report) == METHODS
    assert report["none"]["rate"] == report["base"]["rate"]
    assert report["linear"]["rate"] == pytest.approx(32 * report["base"]["rate"])
    for method in METHODS:
        assert (len(report[method]["search"]) == 1) == (method not in ("none", "linear"))
        assert all(0 <= accuracy <= 1 for accuracy in report[method]["accuracies"])
    assert report["base"]["accuracies"][0] > 0.8
    assert (
        len(re.findall(r"^\| .+ \| (?:4|128) \| [\d.e-]+ \| 0\.\d{4} \| 0\.\d{4} \| 0\.\d{4} \|$", output, re.M)) == 6
    )
    with Image.open(tmp_path / "comparison.png") as picture:
        assert picture.size == (900, 630)
