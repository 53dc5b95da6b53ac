"""`tfdist tune batch` with a real training and a real limit of memory."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.forks import Forks

# an example takes 4 MB in each of several layers
SCRIPT = """
import sys
import keras, numpy as np, tfdist
strategy = tfdist.strategies.from_environment()
batch = tfdist.tune.batch_size(2) * strategy.num_replicas_in_sync
x = np.ones((1000, 1), "float32")
with strategy.scope():
    layers = [keras.layers.Dense(1 << 20, use_bias=False), keras.layers.Activation("relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile("sgd", "mse")
model.fit(x, x, batch_size=batch, epochs=9, verbose=0)
sys.exit("the steps were not ended")
"""

MODULE = """
import argparse
import keras, numpy as np, tfdist
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--batch-size", type=int, required=True)
options = parser.parse_args()
x = np.ones((100, 1), "float32")
with tfdist.strategies.from_environment().scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x, batch_size=options.batch_size, epochs=options.epochs, verbose=0)
"""


def tuned(forking: Forks, folder: Path, *arguments: str) -> tuple[str, str]:
    """Run `tfdist tune batch` to its end, with its jobs in forks; return what it printed and what it said."""
    with forking.start("tfdist", "tune", "batch", *arguments, cwd=folder) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out.decode(), err.decode()


def test_a_module_takes_the_batch_by_its_argument_on_several_replicas(forking: Forks, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(MODULE)
    size = ["--start", "6", "--max", "6", "--warm-up", "1", "--steps", "2"]
    where = ["--strategy", "mirrored", "--replicas-per-worker", "2"]
    script = ["--argument=--batch-size", "--json", "-", "-m", "job", "--epochs", "2"]
    out, _ = tuned(forking, tmp_path, *size, *where, *script)
    (trial,) = json.loads(out)["trials"]
    assert (trial["outcome"], trial["batch"], trial["examples"], trial["replicas"]) == ("fits", 6, 6, 2)


@pytest.mark.readme("tfdist tune batch train.py")
def test_the_largest_batch_under_a_limit_is_found(forking: Forks, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--start", "32", "--max", "128", "--warm-up", "1", "--steps", "2", "--precision", "1"]
    files = ["--plot", "batches.png", "--json", "batches.json"]
    out, err = tuned(forking, tmp_path, *options, "--memory-limit", "1000M", *files, "train.py")
    report = json.loads((tmp_path / "batches.json").read_text())
    outcomes = {trial["batch"]: trial["outcome"] for trial in report["trials"]}
    largest = report["chosen"]["largest"]
    assert outcomes[largest] == "fits"
    assert outcomes[2 * largest] == "out of memory"
    assert sum(trial["batch"] == 2 * largest for trial in report["trials"]) == 2
    (trial,) = (one for one in report["trials"] if one["batch"] == largest)
    assert trial["examples"] == largest
    assert trial["speed"] > 0
    assert 4_000_000 * largest < trial["memory"] < 1_600_000_000
    assert f"largest that fits: {largest}; {2 * largest}: " in out
    assert f"batch {2 * largest}: out of memory" in err
    with Image.open(tmp_path / "batches.png") as picture:
        assert picture.size == (1600, 1000)
