"""`tfdist verify SCRIPT` with real scripts: what is the same, what is not and is named, and nothing left behind."""

import json
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.forks import Fork, Forks
from tfdist.variables import TRIALS

START = """
import sys
import keras, numpy as np, tensorflow as tf, tfdist
strategy = tfdist.strategies.from_environment()
draw = np.random.RandomState(0)
batch = 4 * strategy.num_replicas_in_sync
x, y = draw.normal(size=(19, 3)).astype("float32"), draw.normal(size=(19, 1)).astype("float32")
"""

RIGHT = """
with strategy.scope():
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization(synchronized=True)]
    more = [keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers, *more])
    # three batches in an epoch: the last execution of each has one
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], steps_per_execution=2)
backup = tfdist.callbacks.BackupAndRestore("backups")
model.fit(x, y, batch_size=batch, epochs=5, validation_split=0.1, callbacks=[backup], verbose=0)
sys.exit("the steps were not ended")
"""

# a state of each replica's own, and data without a seed
ODD = """
class Odd(keras.layers.Layer):
    def build(self, shape):
        self.number = self.add_weight(shape=(), initializer="zeros", trainable=False, name="number")
        self.round = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="round")
    def call(self, x):
        self.round.assign((self.round + tf.shape(x)[0]) % 7)  # no sum: tfdist warns of it
        replica = tf.distribute.get_replica_context()
        if replica is not None:
            self.number.assign_add(tf.cast(replica.replica_id_in_sync_group, "float32"))
        return x
with strategy.scope():
    model = keras.Sequential([Odd(), keras.layers.Dense(1)])  # which Keras builds in its first step
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x + np.random.default_rng().normal(), y)).batch(batch)
model.fit(data, verbose=0)
"""

# rows of a table that replicas have whole, by examples without a seed
WHOLE = """
class Rows(keras.layers.Layer):
    def call(self, table, places):
        return tf.gather(table, places)
table, places = keras.Input(batch_shape=(19, 3), name="a"), keras.Input((), dtype="int64", name="b")
strategy.whole_inputs = ["a"]
with strategy.scope():
    made = keras.layers.Dense(2)(Rows()(keras.layers.Dense(3, "tanh")(table), places))
    model = keras.Model({"a": table, "b": places}, made)
    model.compile("adam", "mse")
data = tf.data.Dataset.range(19).shuffle(19, seed=np.random.default_rng().integers(1 << 30)).batch(batch)
model.fit(data.map(lambda places: ({"a": tf.constant(x), "b": places}, tf.gather(y, places))), epochs=2, verbose=0)
"""

# a step that is tried, on batches that are a tensor; what was found out of it may be kept
OWN_STEP = """
class Own(keras.Sequential):
    def train_step(self, data):
        x, y = data[:, :3], data[:, 3:]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)[:, 0])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
with strategy.scope():
    model = Own([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1))
model.fit(tf.data.Dataset.from_tensor_slices(np.concatenate([x, y], axis=1)).batch(batch), verbose=0)
"""

# batches of 6 and 4 examples, and of 6 and 3
OWN_DATA = """
from tensorflow.data.experimental import AutoShardPolicy
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
workers = tfdist.cluster.from_environment()
rows = slice(workers.task.index, None, workers.num_workers)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
model.fit(tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(6).with_options(options), verbose=0)
"""

RANDOM = """
class Noise(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="own_noise")
        self.seed_generator = keras.random.SeedGenerator(1)
    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), Noise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, verbose=0)
"""

LOOP = """
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(19, seed=3).batch(batch, drop_remainder=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)
    mean = keras.metrics.Mean("mean")
def step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        each = keras.losses.mean_squared_error(y, model(x, training=True))
        loss = tf.reduce_sum(each) / batch if sys.argv[1] == "right" else tf.reduce_mean(each)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    mean.update_state(each)
    return loss
@tf.function
def train(inputs):
    return strategy.reduce("SUM", strategy.run(step, args=(inputs,)), axis=None)
for inputs in strategy.experimental_distribute_dataset(data):
    train(inputs)
"""

# with no seed that anybody could set
BATCHES = """
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
for _ in range(2):
    model.train_on_batch(np.random.default_rng().normal(size=(8, 3)), y[:8])
"""

FAILS = "raise LookupError('no such data')\n"
TRAINS_NOT = "pass\n"
WAITS = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(600)\n"


COMMAND = """
import sys
import tempfile
from tests.integration import forked
tempfile.tempdir = None  # what the process that forks has found out
forked.run_tfdist(sys.argv[1:])
"""

Start = Callable[..., AbstractContextManager[Fork]]
Verified = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return the folder for the files of runs; it is empty again after each."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.fixture
def start(forking: Forks, tmp_path: Path, temporary: Path) -> Start:
    """Starts the command on a script."""

    def started(script: str, *options: str, **environ: str) -> AbstractContextManager[Fork]:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        (tmp_path / "command.py").write_text(COMMAND, encoding="utf-8")
        words = [str(tmp_path / "command.py"), "verify", "train.py", *options]
        return forking.start(*words, cwd=tmp_path, TMPDIR=str(temporary), **environ)

    return started


@pytest.fixture
def verified(start: Start, temporary: Path) -> Verified:
    """Runs the command to its end; returns its code, what it found, and what it wrote."""

    def run(script: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
        with start(script, "--json", "-", *options) as process:
            out, err = (text.decode() for text in process.communicate())
        assert process.returncode is not None
        assert list(temporary.iterdir()) == []
        return process.returncode, json.loads(out)["proofs"] if out.startswith("{") else [], out + err

    return run


@pytest.mark.readme("tfdist verify train.py --strategy mirrored")
def test_the_numbers_of_a_right_script_are_those_of_one_device(verified: Verified, tmp_path: Path) -> None:
    both = ["--strategy", "mirrored", "--strategy", "multi-worker-2x1"]
    code, proofs, written = verified(START + RIGHT, *both)
    assert code == 0, written
    for proof, workers in zip(proofs, (1, 2), strict=True):
        assert (proof["outcome"], proof["differences"], proof["workers"]) == ("same", [], workers)
        assert (proof["steps"], proof["replicas"]) == (5, 2)
        assert proof["compared"] == {"log": 2, "prediction": 1, "slot": 14, "state": 2, "weight": 6}
        told = " ".join(proof["left_out"])
        for word in ("dropout", "validation", "BackupAndRestore"):
            assert word in told
    assert not (tmp_path / "backups").exists()


def test_a_state_that_a_replica_sets_by_its_number_is_named(verified: Verified) -> None:
    code, (proof,), written = verified(START + ODD, "--steps", "2")
    assert code == 1, written
    names = {"sequential/odd/number", "sequential/odd/round"}
    assert {(one["kind"], one["name"], one["step"]) for one in proof["differences"]} == {("state", n, 1) for n in names}
    assert any("sequential/odd/round" in hint for hint in proof["hints"])  # tfdist itself has warned of it
    assert "examples" in " ".join(proof["left_out"])  # others were drawn on one device, which got the recorded ones


def test_inputs_that_replicas_have_whole_are_one_on_one_device(verified: Verified) -> None:
    code, (proof,), written = verified(START + WHOLE, "--steps", "4")
    assert code == 0, written
    assert (proof["differences"], proof["replicas"]) == ([], 2)
    assert "examples" in " ".join(proof["left_out"])  # one device got the recorded ones


def test_a_step_is_tried_whatever_an_earlier_start_has_kept(start: Start, forking: Forks, tmp_path: Path) -> None:
    keeping = {TRIALS.name: "keep", "TFDIST_CACHE_DIR": str(tmp_path / "cache")}
    with start(START + OWN_STEP, **keeping) as process:
        out, err = (text.decode() for text in process.communicate())
    assert process.returncode == 0, out + err
    assert not list(tmp_path.glob("cache/**/*.json"))  # tried, and not kept
    how = ["-n", "1", "--strategy", "mirrored", "--replicas-per-worker", "2"]
    assert forking.run("tfdist", "run", *how, "train.py", cwd=tmp_path, **keeping) == 0, forking.output
    assert len(list(tmp_path.glob("cache/**/*.json"))) == 1


def test_one_device_is_given_what_workers_with_data_of_their_own_have_read(verified: Verified) -> None:
    code, (proof,), written = verified(START + OWN_DATA, "-n", "2")
    assert code == 0, written
    assert (proof["steps"], proof["workers"]) == (4, 2)
    assert "its own" in " ".join(proof["left_out"])


@pytest.mark.readme("tfdist verify train.py --strategy multi-worker -n 2 -- --epochs 3")
def test_a_loop_of_ones_own_is_compared_step_by_step(verified: Verified) -> None:
    two = ["--strategy", "multi-worker", "-n", "2"]
    code, (proof,), written = verified(START + LOOP, *two, "--", "right")
    assert code == 0, written
    assert (proof["outcome"], proof["steps"], proof["workers"]) == ("same", 2, 2)
    assert proof["compared"] == {"log": 3, "slot": 10, "weight": 4}
    code, (proof,), written = verified(START + LOOP, "--", "sums")
    assert code == 1, written
    found = {one["name"]: one for one in proof["differences"]}
    momentum = found["adam/sequential/dense/bias/momentum"]
    assert (momentum["kind"], momentum["step"]) == ("slot", 1)
    assert momentum["size"] == pytest.approx(1.0, rel=1e-3)  # the gradient of two replicas is twice as large


def test_texts_of_parts_are_those_of_the_whole_batch_whatever_their_lengths() -> None:
    import tensorflow as tf

    from tfdist.verify.proof.differences import other_batches
    from tfdist.verify.proof.loop_steps import _digests

    texts, here = tf.constant([["é", "of"], ["a longer one", "x"]]), tf.distribute.get_strategy()
    whole, *parts = ([list(_digests(some, here))] for some in (texts, texts[:1], texts[1:]))
    assert other_batches(parts, whole) == 0


def test_one_device_is_told_the_number_of_rows_where_all_batches_have_that() -> None:
    import tensorflow as tf

    from tfdist.verify.proof.fit_steps import _dataset

    like = tf.data.Dataset.from_tensor_slices(tf.zeros([6, 2])).batch(3, drop_remainder=True)
    for rows, known in ((3, 3), (2, None)):
        assert _dataset([[tf.zeros([rows, 2])]], like).element_spec.shape == [known, 2]


def test_what_cannot_be_compared_and_what_fails_are_told_apart(verified: Verified) -> None:
    code, (proof,), written = verified(START + BATCHES)
    assert (code, proof["outcome"]) == (3, "not_compared"), written
    assert "step 1" in proof["text"]
    code, (proof,), written = verified(START + RANDOM, "--steps", "1")
    assert (code, proof["outcome"]) == (3, "not_compared"), written
    assert "own_noise" in proof["text"]
    code, (proof,), written = verified(TRAINS_NOT)
    assert (code, proof["outcome"]) == (3, "not_compared"), written
    code, (proof,), written = verified(FAILS)
    assert (code, proof["outcome"]) == (4, "failed"), written
    assert "no such data" in proof["text"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_comparison_leaves_nothing(
    number: signal.Signals, code: int, start: Start, temporary: Path, tmp_path: Path
) -> None:
    with start(WAITS) as process:
        deadline = time.monotonic() + 200
        pid = tmp_path / "pid"
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        script = psutil.Process(int(pid.read_text()))
        assert list(temporary.iterdir())
        process.send_signal(number)
        process.wait()
    assert process.returncode == code, process.written
    assert not psutil.wait_procs([script], timeout=200)[1]
    assert list(temporary.iterdir()) == []
