"""A step is tried once for a version of its code: later starts use what was found out, where that is sure to hold."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.forks import Forks
from tests.integration.steppers import options
from tfdist.variables import TRIALS

DEADLINE_SECONDS = 800
# A step of the user's, which is tried; what it is compared with trains on one device.
BODY = """
import json, logging, sys
import numpy as np
import keras
import tensorflow as tf
os.environ["TFDIST_CACHE_DIR"] = os.environ["CACHE"] + str(ME)
import tfdist
from tfdist.training.checks import tried_step

tries, said = [], []
own = tried_step.TriedStep.__init__
def counted(self, *given, **named):
    tries.append(1)
    own(self, *given, **named)
tried_step.TriedStep.__init__ = counted
class Heard(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
logging.getLogger("tfdist").addHandler(Heard())

LIMIT = 0.5
def total(values):
    return tf.reduce_mean(values)

class Count(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
    def call(self, inputs, training=False):
        if training:
            self.count.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs

class Own(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = total(tf.square(self(x, training=True) - y)[:, 0])
        gradients = tape.gradient(loss, self.trainable_variables)
        # LIMITED gradients, _ = tf.clip_by_global_norm(gradients, LIMIT)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

def model():
    keras.utils.set_random_seed(SEED)
    made = Own([keras.Input((3,)), keras.layers.Dense(4, "tanh"), Count(), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.01))
    return made

def trained(made):
    rows = np.random.default_rng(SEED).normal(size=(40, 4)).astype("float32")
    made.fit(rows[:, :3], rows[:, 3:], batch_size=8, epochs=1, shuffle=False, verbose=0)
    return [one.tolist() for one in made.get_weights()]

SEED = int(os.environ["SEED"])
strategy = tfdist.strategies.from_environment()
with strategy.scope():
    ours = model()
found = {"ours": trained(ours), "tries": len(tries), "said": said[:]}
if ME == 0:
    found["one"] = trained(model())
tell(os.environ["RESULT"] + str(ME), json.dumps(found))
"""
SUM = ("return tf.reduce_mean(values)", "return tf.reduce_sum(values)")
FUNCTION = ("    def train_step", "    @tf.function\n    def train_step")
LIMITED = ("# LIMITED ", "")
MASKED = (
    "return tf.reduce_mean(values)",
    "return tf.reduce_sum(values) / tf.reduce_sum(tf.cast(values < 1e9, 'float32'))",
)

Start = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def start(forking: Forks, shared: Path, script: Callable[[str], Path]) -> Start:
    """Start the script, with a change, and return what its workers tell."""
    variables = options(shared)["env"]
    numbers = iter(range(100))

    def run(*changes: tuple[str, str], seed: int = 1, workers: int = 1) -> list[dict[str, Any]]:
        body = BODY
        for before, after in changes:
            assert before in body
            body = body.replace(before, after)
        for worker in range(workers):
            place = shared / f"cache{worker}"
            place.mkdir(exist_ok=True)
            if not (place / "ops").exists():
                (place / "ops").symlink_to((shared / "cache" / "ops").resolve())
        result = f"result {next(numbers)} "
        more = {"CACHE": str(shared / "cache"), "SEED": str(seed), "RESULT": result, TRIALS.name: "keep"}
        how = ["-n", str(workers), "--strategy", "multi-worker"]
        if workers == 1:
            how = ["-n", "1", "--strategy", "mirrored", "--replicas-per-worker", "2"]
        code = forking.run("tfdist", "run", *how, str(script(body)), **{**variables, **more})
        assert code == 0, forking.output
        return [json.loads((shared / f"{result}{worker}").read_text()) for worker in range(workers)]

    return run


def assert_right(found: dict[str, Any]) -> None:
    for ours, one in zip(found["ours"], found["one"], strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)


def test_a_second_start_tries_nothing_and_has_the_same_numbers(start: Start) -> None:
    (first,), (second,) = start(), start()
    assert (first["tries"] > 0, second["tries"]) == (True, 0)
    assert second["ours"] == first["ours"]
    assert_right(second)
    (other,) = start(seed=2)  # other rows and other weights
    assert other["tries"] == 0
    assert other["ours"] != first["ours"]
    assert_right(other)


def test_changed_code_is_tried_again_and_right(start: Start) -> None:
    (before,) = start(FUNCTION)
    (after,) = start(FUNCTION, SUM)
    assert after["tries"] > 0
    assert after["ours"] != before["ours"]
    assert_right(after)
    assert start(FUNCTION, SUM)[0]["tries"] == start(FUNCTION)[0]["tries"] == 0, "both versions are kept"


def test_a_warning_is_said_at_each_start(start: Start) -> None:
    (first,), (second,) = start(LIMITED), start(LIMITED)
    assert (first["tries"] > 0, second["tries"]) == (True, 0)
    assert second["said"] == first["said"]
    assert "its own gradients" in first["said"][0]


def test_what_values_may_change_is_tried_at_each_start(start: Start) -> None:
    assert all(start(MASKED)[0]["tries"] > 0 for _ in range(2))


def test_workers_use_what_all_of_them_have_kept(start: Start, shared: Path) -> None:
    assert all(one["tries"] > 0 for one in start(workers=2))
    assert all(one["tries"] == 0 for one in start(workers=2))
    shutil.rmtree(shared / "cache1" / "trials")
    found = start(workers=2)
    assert all(one["tries"] > 0 for one in found), "one worker of two has nothing kept"
    assert_right(found[0])


def test_a_file_with_something_else_in_it_is_tried_anew(start: Start, shared: Path) -> None:
    start()
    (kept,) = (shared / "cache0" / "trials").iterdir()
    whole = kept.read_bytes()
    kept.write_text("{}")
    (found,) = start()
    assert found["tries"] > 0
    assert kept.read_bytes() == whole


def test_a_user_can_have_every_start_try(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    again = ('os.environ["CACHE"] + str(ME)', f'os.environ["CACHE"] + str(ME); os.environ["{TRIALS.name}"] = "again"')
    assert start(again)[0]["tries"] > 0
