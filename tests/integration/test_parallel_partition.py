"""The profile of a model, and `tfdist parallel plan` of a script."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.integration.agents import says
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist import parallel
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.parallel.partition import Link, measure, read, stages_by
from tfdist.parallel.partition.profile_model import LOSS, step_seconds
from tfdist.parallel.pipeline.division import Division

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 300
MODEL = """
import sys
import keras, numpy as np

inputs = keras.Input((8,))
hidden = keras.layers.Dense(16, "relu", name="_first")(inputs)
skipped = keras.layers.Dense(16, name="second")(hidden) + hidden
model = keras.Model(inputs, keras.layers.Dense(2, name="last")(skipped), name="small")
model.compile("adam", "mse")
"""
FITS = MODEL + "model.fit(np.ones((40, 8)), np.ones((40, 2)), batch_size=12)\nsys.exit('trained')\n"


def small() -> keras.Model:
    """A model with a skip connection, a shared layer, and state."""
    inputs = keras.Input((8,))
    shared = keras.layers.Dense(8, name="shared")
    first = shared(inputs)
    normal = keras.layers.BatchNormalization(name="normal")(first)
    second = shared(keras.layers.Dropout(0.5, name="drop", seed=3)(normal))
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(first + second), name="small")
    model.compile("adam", "mse")
    return model


def test_a_profile_counts_and_changes_nothing() -> None:
    model = small()
    x, y = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")
    model.fit(x, y, verbose=0)
    before = [one.numpy() for one in [*model.weights, *model.optimizer.variables]]
    found = measure(model, (x, y), batch_sizes=[3])
    after = [one.numpy() for one in [*model.weights, *model.optimizer.variables]]
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    rows = [(one.name, one.inputs, one.may_begin_stage) for one in found.layers]
    assert rows == [
        ("shared", (), True),
        ("normal", (0,), True),
        ("drop", (1,), True),
        ("shared", (2,), False),
        (found.layers[4].name, (0, 3), False),
        ("last", (4,), True),
        (LOSS, (5,), False),
    ]
    assert [one.parameter_bytes for one in found.layers] == [288, 64, 0, 288, 0, 72, 0]
    assert [one.output_bytes for one in found.layers] == [32, 32, 32, 32, 32, 8, 0]
    assert found.layers[1].state_bytes == 64
    assert found.layers[2].kept_bytes >= 32 + 8  # its result and its mask
    assert (found.batch, found.batch_sizes) == (12, (3, 12))
    assert [one.divides for one in found.layers] == [0, 0, 0, 0, 0, 2, 0]  # a layer that is called twice lies whole
    assert not any(one.joins for one in found.layers)
    assert found.slot_bytes == 2 * (288 + 64 + 72)
    assert (len(found.whole_seconds), found.call_seconds > 0) == (2, True)


def nested() -> keras.Model:
    """A model in a model, and one whose call is its own; two layers have one name."""

    class Own(keras.Sequential):
        def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
            return super().call(inputs, training=training)

    layers = keras.layers
    base = [keras.Input((8,)), layers.Dense(8, name="up"), layers.Dense(8, name="down")]
    own = Own([keras.Input((8,)), layers.Dense(8), layers.Dense(8, name="down")], name="own")
    inputs = keras.Input((8,))
    x = own(keras.Sequential(base, name="base")(inputs))
    head = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, name="down"), layers.Dense(2, name="last")], name="head"
    )
    model = keras.Model(inputs, head(x), name="outer")
    model.compile("sgd", "mse")
    return model


def test_a_profile_has_the_layers_of_models_within_a_model() -> None:
    model = nested()
    found = measure(model, np.ones((4, 8), "float32"), seconds=0.1)
    names = ["base/up", "base/down", "own", "head/down", "head/last"]
    assert [one.name for one in found.layers] == [*names, LOSS]
    assert [one.parameter_bytes for one in found.layers] == [288, 288, 576, 288, 72, 0]
    assert set(stages_by(found)(model, 3)) <= set(names)


@pytest.mark.parametrize(
    ("stages", "begins"),
    [
        ("auto", ("head/down",)),
        (["base/down"], ("base/down",)),
        (["up"], None),  # the first one
        (["last"], ("head/last",)),
        (["head"], ("head/down",)),
        (["down"], None),  # two layers
        (["own/down"], None),  # its call is its own
    ],
)
def test_a_pipeline_is_cut_inside_models_within_a_model(stages: Any, begins: Any) -> None:
    if begins is None:
        with pytest.raises(ConfigError, match=stages[0]):
            Division(nested(), 2, stages)
    else:
        assert Division(nested(), 2, stages).stages == begins


@pytest.mark.parametrize(("step", "left"), [(-1.0, 0.0), (100.0, 100.0)])
def test_what_a_step_leaves_is_the_update_and_what_is_fixed(step: float, left: float) -> None:
    batch = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")
    # below 0, a step takes less than its parts on the slowest machine
    found = measure(small(), batch, in_fit=lambda batch, steps: step)
    assert found.update_seconds + found.fixed_seconds == pytest.approx(left, abs=1.0)
    assert min(found.update_seconds, found.fixed_seconds) >= 0
    assert (found.update_seconds > 0) == (left > 0)


class Copies(keras.layers.Layer):
    """Returns what it is given, and knows whether somebody asked for a gradient of that."""

    is_asked = False

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def copy(values: tf.Tensor) -> Any:
            def backward(gradient: tf.Tensor) -> tf.Tensor:
                self.is_asked = True
                return gradient

            return tf.identity(values), backward

        return copy(inputs)


def test_what_no_weight_depends_on_has_no_backward_pass_as_in_training() -> None:
    copies = [Copies() for _ in range(3)]
    dense = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((8,)), copies[0], copies[1], dense, copies[2], keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    measure(model, (np.ones((4, 8), "float32"), np.ones((4, 2), "float32")))
    assert [one.is_asked for one in copies] == [False, False, True]


@pytest.mark.parametrize("each", [1, 3])
def test_a_step_is_the_middle_one_of_those_that_are_counted(each: int) -> None:
    model = small()
    model.compile("sgd", "mse", steps_per_execution=each)
    times = [0.0, 50.0, 53.0, 56.0]  # the second call met something else
    batch = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")
    assert step_seconds(model, batch, 3, clock=iter(times).__next__) == 3.0 / each
    assert int(model.optimizer.iterations) == 4 * each


def test_plans_of_a_model_in_python(caplog: pytest.LogCaptureFixture) -> None:
    batch = np.ones((12, 8), "float32"), np.ones((12, 2), "float32")
    layers = [keras.layers.Dense(16, name="first"), keras.layers.Dense(16, name="second"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    report = parallel.plan(model, batch, devices=2, memory_bytes=1 << 30, link=Link.parse("10gbit"))
    assert {one.name for one in report.plans} >= {"one device", "data 2", "pipeline 2"}
    assert report.best is not None
    pipeline = next(one for one in report.plans if one.name == "pipeline 2")
    assert set(pipeline.layers) <= {"second", layers[-1].name}
    found = [(one.divides, one.joins) for one in report.profile.layers]
    assert found == [(16, False), (16, True), (2, True), (0, False)]
    assert "retracing" not in caplog.text  # each layer is a function of its own


class Subclassed(keras.Model):
    def call(self, inputs: object) -> object:
        return inputs


def test_what_has_no_graph_or_no_example_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"keras\.Model\(inputs, outputs\)"):
        parallel.plan(Subclassed(), np.ones((4, 8)), devices=2)
    with pytest.raises(ConfigError, match="one example"):
        parallel.plan(small(), np.ones((0, 8)), devices=2)
    with pytest.raises(ConfigError, match="at least 1"):
        parallel.plan(small(), np.ones((4, 8)), devices=0)


def written(folder: Path, body: str) -> Path:
    """Write the script; return the folder that it is in."""
    folder = folder / "Läufe mit Lücken"
    folder.mkdir()
    folder.joinpath("train.py").write_text(body, encoding="utf-8")
    return folder


@pytest.mark.readme("tfdist parallel plan --devices 4 --memory 8GB train.py")
def test_a_script_is_measured_at_its_fit_and_does_not_train(forking: Forks, tmp_path: Path) -> None:
    folder = written(tmp_path, FITS)
    options = ["--at-once", "2", "--save-profile", "costs.json", "--json", "plans.json"]
    command = ["--devices", "4", "--memory", "8GB", "--threads", "1", *options]  # the line is measured as well
    with forking.start("tfdist", "parallel", "plan", *command, "train.py", cwd=folder) as process:
        out, err = (said.decode() for said in process.communicate(DEADLINE_SECONDS))
    assert process.returncode == 0, err
    found = json.loads((folder / "plans.json").read_text())
    assert (found["model"], found["batch"], found["link"]["is_local"]) == ("small", 12, True)
    costs = read(folder / "costs.json")
    assert [one.name for one in costs.layers][:2] == ["_first", "second"]
    assert costs.alone is not None
    assert (costs.processes, costs.alone.processes) == (2, 1)
    assert says(out, "in 2 processes at once", "one device in one")
    assert "tfdist run" in out or "python train.py" in out


def test_a_script_without_fit_is_told_what_is_needed(tmp_path: Path) -> None:
    """In a process that is started anew, as users' are."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFDIST_")}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "parallel", "plan", "--devices", "4", "--link", "1gbit", "train.py"],
        cwd=written(tmp_path, MODEL + "print('that was all')"),
        env={**kept, **quiet},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 1
    assert "without a call of `fit`" in done.stderr
    assert "that was all" in done.stderr
