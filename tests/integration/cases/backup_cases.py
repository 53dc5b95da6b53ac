"""Uses of BackupAndRestore; each function asserts what must hold. python backup_cases.py NAME FOLDER"""

import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.refusals import refused
from tfdist.callbacks import BackupAndRestore, LossScaleLogger
from tfdist.checkpoint import Store
from tfdist.checkpoint.background_writer import Writer
from tfdist.compat.keras import callback_fields
from tfdist.data import read, write
from tfdist.errors import ConfigError
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.status import HALTED, StatusTable
from tfdist.optimizers import DistributedOptimizer

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch, batch=None):
        super().__init__()
        self.epoch, self.batch, self.now = epoch, batch, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch
        if epoch == self.epoch and self.batch is None:
            raise KeyboardInterrupt

    def on_train_batch_begin(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            raise KeyboardInterrupt


def model_of(units=4, strategy=None, traced=False):
    """Without a strategy steps run eagerly where nothing else is asked: what is saved, and when, is the same."""
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        hidden = keras.layers.Dense(units, "tanh", use_bias=False)  # the fewer variables, the sooner a step is traced
        model = keras.Sequential([keras.Input((3,)), hidden, keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=strategy is None and not traced)
    return model


def fit(model, callbacks, epochs=3, x=X, **more):
    return model.fit(x, Y, batch_size=4, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks, **more)


def interrupted(model, callbacks, epoch, batch=None, **more):
    with pytest.raises(KeyboardInterrupt):
        fit(model, [*callbacks, Interrupt(epoch, batch)], **more)


def raises(kind, words, call):
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def arguments(folder):
    wrong = [{"save_freq": value} for value in (0, "batch", True, 1.5)]
    for bad in [*wrong, {"keep": 0}, {"learning_rate_rule": "cubic"}]:
        raises(ConfigError, [next(iter(bad))], lambda bad=bad: BackupAndRestore(folder, **bad))
    raises(ConfigError, ["backup_dir"], lambda: BackupAndRestore(""))
    both = [BackupAndRestore(folder), keras.callbacks.BackupAndRestore(str(folder))]
    raises(ConfigError, ["two callbacks"], lambda: fit(model_of(), both))


def interrupted_in_a_notebook(folder):
    """The same objects go on after Ctrl-C, and a fit that has ended is not gone on with."""
    expected = fit(model_of(traced=True), []).history["loss"]
    model, backup = model_of(traced=True), BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)
    interrupted(model, [backup], 1, 2)
    history = fit(model, [backup])
    assert history.history["loss"] == expected
    assert history.epoch == [0, 1, 2]
    assert not (folder / "b").exists()
    assert len(fit(model, [backup], epochs=1).epoch) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def kept_and_gone_on_with(folder):
    """With delete_checkpoint=False more epochs are a continuation."""
    expected = fit(model_of(), [], epochs=4).history["loss"]
    fit(model_of(), [BackupAndRestore(folder / "b", delete_checkpoint=False)], epochs=2)
    history = fit(model_of(), [BackupAndRestore(folder / "b", delete_checkpoint=False)], epochs=4)
    assert history.history["loss"] == expected
    assert fit(model_of(), [BackupAndRestore(folder / "b", delete_checkpoint=False)], epochs=4).epoch == [0, 1, 2, 3]


def another_steps_per_execution(folder):
    """Training resumes after the very step, however many steps are executed at once before and after it."""
    x = np.random.default_rng(1).normal(size=(42, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    write({"x": x, "y": y}, folder / "data", processes=1)

    def batches():
        for begin in range(0, 42, 4):
            yield x[begin : begin + 4], y[begin : begin + 4]

    def data(kind):
        if kind == "arrays":
            return {"x": x, "y": y, "batch_size": 4, "shuffle": False}
        if kind == "generator":
            signature = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
            return {"x": tf.data.Dataset.from_generator(batches, output_signature=signature)}
        return {"x": read(folder / "data", global_batch_size=4, seed=5, label="y", tail="keep")}

    def trained(kind, at_once, stop=None, backup="b"):
        model = model_of()  # where the input ends before it is known to, Keras counts a step of Adam too many
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=at_once)
        callbacks = [BackupAndRestore(folder / backup, save_freq=1, asynchronous=False)]
        callbacks += [] if stop is None else [Interrupt(*stop)]
        model.fit(**data(kind), epochs=2, verbose=0, callbacks=callbacks)
        return model

    cases = [("arrays", 1, 4, (1, 2)), ("generator", 1, 4, (1, 6)), ("tfdist", 4, 5, (1, 8))]
    for number, (kind, before, after, stop) in enumerate(cases):
        expected, backup = trained(kind, 1, backup=f"whole {number}"), f"b{number}"
        with pytest.raises(KeyboardInterrupt):
            trained(kind, before, stop, backup)
        found = trained(kind, after, backup=backup)
        for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6, err_msg=f"{kind} {number}")


def another_model(folder):
    interrupted(model_of(), [BackupAndRestore(folder / "b")], 1)
    words = ["another model", "(3, 5)", "(3, 4)"]
    raises(ConfigError, words, lambda: fit(model_of(units=5), [BackupAndRestore(folder / "b")]))


def other_metrics(folder):
    """A metric is added, and one is gone, when an epoch has ended; within an epoch that is an error, which says so."""

    def measured(*metrics):
        model = model_of()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=list(metrics), run_eagerly=True)
        return model

    whole = model_of()
    fit(whole, [])
    for begun, gone_on in [((), ("mae",)), (("mae",), ()), (("mae",), ("mape",))]:
        place = folder / f"{begun} {gone_on}"
        interrupted(measured(*begun), [BackupAndRestore(place)], 1)
        model = measured(*gone_on)
        history = fit(model, [BackupAndRestore(place)]).history
        assert [len(history[name]) for name in ("loss", *gone_on)] == [3, *(2 for _ in gone_on)]
        for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    interrupted(measured(), [BackupAndRestore(folder / "b", save_freq=1)], 1, 2)
    raises(ConfigError, ["when an epoch has ended"], lambda: fit(measured("mae"), [BackupAndRestore(folder / "b")]))


def interrupted_while_saving(folder):
    """A `fit` in the process of another that was interrupted waits for what that one still saves."""
    begun, let_go = threading.Event(), threading.Event()
    save, close = Store.save, Writer.close

    def held_up(*args, **kwargs):
        begun.set()
        assert let_go.wait(60), "nobody waited for the writer"
        return save(*args, **kwargs)

    def closed(writer, *args):
        let_go.set()
        close(writer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save", held_up)
        patch.setattr(Writer, "close", closed)
        interrupted(model_of(), [BackupAndRestore(folder / "b")], 1)
        assert begun.wait(60)
        found = fit(model_of(), [BackupAndRestore(folder / "b")]).history
    assert found == fit(model_of(), []).history


def of_something_else(folder):
    """A checkpoint that the callback has not written is refused, and stays."""
    Store(folder / "b").save(3, {"x": np.zeros(2)}, {"mine": True})
    raises(ConfigError, ["version None"], lambda: fit(model_of(), [BackupAndRestore(folder / "b")]))
    assert Store(folder / "b").newest().state == {"mine": True}


def of_an_earlier_version(folder):
    """Training goes on from a backup that an earlier tfdist made of `model_of()`, to the weights of no interruption."""
    sample = Path(__file__).parents[2] / "goldens" / "samples" / "backup-1"
    shutil.copytree(sample, folder / "b")
    never, again = model_of(), model_of()
    fit(never, [])
    assert len(fit(again, [BackupAndRestore(folder / "b", delete_checkpoint=False)]).history["loss"]) == 3
    np.testing.assert_allclose(again.get_weights()[0], never.get_weights()[0], rtol=1e-5)
    assert Store(sample).newest().state.keys() <= Store(folder / "b").newest().state.keys()


def damaged(folder):
    """A flipped byte in the newest backup costs what came after the one before, and a warning."""
    expected = fit(model_of(), []).history["loss"]
    interrupted(model_of(), [BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)], 1, 2)
    newest = sorted(folder.glob("b/step-*"))[-1] / "arrays.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    history = fit(model_of(), [BackupAndRestore(folder / "b", save_freq=1)])
    assert history.history["loss"] == expected
    assert any(newest.parent.name in line for line in said), said


def of_two_jobs(folder):
    """A directory with which another process trains is told once, with its name."""
    place, said = Path(folder, "backup"), []
    place.mkdir()
    other = os.open(place, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    fit(model_of(), [BackupAndRestore(place)], epochs=1)
    os.close(other)
    fit(model_of(), [BackupAndRestore(place)], epochs=1)
    assert [str(place) in words for words in said] == [True], said


def full_disk(folder):
    """A disk that is full costs a warning, and the backup from before stands."""
    import resource

    expected = fit(model_of(units=4000), [], epochs=2).history["loss"]
    interrupted(model_of(units=4000), [BackupAndRestore(folder / "b", asynchronous=False)], 1)
    before = sorted(path.name for path in folder.glob("b/step-*"))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    backup = BackupAndRestore(folder / "b", save_freq=1, delete_checkpoint=False)
    history = fit(model_of(units=4000), [backup], epochs=2)
    assert history.history["loss"] == expected
    assert sorted(path.name for path in folder.glob("b/step-*")) == before
    assert any("could not be saved" in line for line in said), said


def ended_by_sigterm(folder):
    """SIGTERM saves, whatever save_freq is, and ends with 143."""

    class Term(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and self.model.optimizer.iterations == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    expected = fit(model_of(), []).history["loss"]
    with pytest.raises(SystemExit) as ended:
        fit(model_of(), [BackupAndRestore(folder / "b", save_freq=False), Term()])
    assert ended.value.code == 143
    model = model_of()
    history = fit(model, [BackupAndRestore(folder / "b", save_freq=False)])
    assert history.history["loss"] == expected
    assert int(model.optimizer.iterations) == 9


def early_stopping(folder):
    """Training that had stopped does not go on; one that would stop later stops there."""

    def callbacks():
        return [keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True)]

    expected = fit(model_of(), callbacks(), epochs=9)
    assert len(expected.epoch) == 2
    interrupted(model_of(), [*callbacks(), BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)], 1, 2)
    model = model_of()
    backup = BackupAndRestore(folder / "b", save_freq=1, delete_checkpoint=False, asynchronous=False)
    history = fit(model, [backup, *callbacks()], epochs=9)
    assert history.history["loss"] == expected.history["loss"]
    for ours, theirs in zip(model.get_weights(), expected.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def own_train_step(folder):
    """Two optimizers, built before training, by the first step, or the second one by a later step."""

    class Pair(keras.Model):
        def __init__(self, alone):
            super().__init__()
            self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)
            self.first_optimizer, self.second_optimizer = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, 0.9)
            self.alone = alone  # steps of the first optimizer, before the second one has its first

        def call(self, x):
            return self.first(x) + self.second(x)

        def train_step(self, data):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            both = ((self.first, self.first_optimizer), (self.second, self.second_optimizer))
            for layer, optimizer in both[:1] if self.alone and self.first_optimizer.iterations < self.alone else both:
                optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
            return {"own": loss}

    def make(builds, alone):
        keras.utils.set_random_seed(3)
        model = Pair(alone)
        model(X[:1])
        for layer, optimizer in ((model.first, model.first_optimizer), (model.second, model.second_optimizer)):
            _ = builds and optimizer.build(layer.trainable_variables)
        model.compile(run_eagerly=bool(alone))
        return model

    for epoch, batch, builds, alone in ((1, 1, True, 0), (1, 2, False, 0), (2, 0, False, 3)):
        expected = fit(make(builds, alone), []).history["own"]
        interrupted(make(builds, alone), [BackupAndRestore(folder / "b", 1, asynchronous=False)], epoch, batch)
        assert fit(make(builds, alone), [BackupAndRestore(folder / "b")]).history["own"] == expected


def mixed_precision(folder):
    """The loss scale, its counter and the skipped steps are part of the state, also of the epoch that is going on."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = tfdist.strategies.MirroredStrategy(["CPU:0"])
    bad = X.copy()
    bad[5] = np.inf
    expected = model_of(strategy=strategy)
    history = fit(expected, [], x=bad).history
    assert history["skipped_steps"] == [1, 2, 3]
    interrupted(model_of(strategy=strategy), [BackupAndRestore(folder / "b", 2, asynchronous=False)], 2, 2, x=bad)
    model = model_of(strategy=strategy)
    again = fit(model, [BackupAndRestore(folder / "b", 2)], x=bad).history
    assert (again["skipped_steps"], again["loss_scale"]) == (history["skipped_steps"], history["loss_scale"])
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    for ours, theirs in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def distributed_optimizer(folder):
    """The loss scale, the count of skipped steps and an accumulation that is not complete are part of the state."""
    bad = X.copy()
    bad[5] = np.inf

    def begun():
        model = model_of()
        inner = keras.optimizers.Adam(0.01)
        model.compile(DistributedOptimizer(inner, accumulate_steps=2, loss_scale="dynamic", growth_steps=2), "mse")
        return model

    def fit_bad(model, callbacks):
        return model.fit(bad, Y, batch_size=2, epochs=3, verbose=0, shuffle=False, callbacks=callbacks).history

    expected = begun()
    history = fit_bad(expected, [LossScaleLogger()])
    assert history["skipped_steps"] == [1, 2, 3]
    backup = BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)
    with pytest.raises(KeyboardInterrupt):
        fit_bad(begun(), [backup, LossScaleLogger(), Interrupt(1, 3)])
    model = begun()
    np.testing.assert_equal(fit_bad(model, [BackupAndRestore(folder / "b"), LossScaleLogger()]), history)  # with NaN
    for ours, theirs in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def another_batch(folder):
    """The learning rate follows the global batch, if it is asked to."""
    for rule, rate in (("none", 0.01), ("linear", 0.03), ("sqrt", 0.01 * 3**0.5)):
        interrupted(model_of(), [BackupAndRestore(folder / rule)], 1)
        model = model_of()
        backup = BackupAndRestore(folder / rule, learning_rate_rule=rule)
        model.fit(X, Y, batch_size=12, epochs=2, verbose=0, shuffle=False, callbacks=[backup])
        np.testing.assert_allclose(model.optimizer.learning_rate.numpy(), rate, rtol=1e-6)
    scheduled = model_of()
    scheduled.compile(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)), "mse")
    interrupted(scheduled, [BackupAndRestore(folder / "b")], 1)
    backup = BackupAndRestore(folder / "b", learning_rate_rule="sqrt")
    with refused(ConfigError, name="learning_rate_rule", received="sqrt"):
        scheduled.fit(X, Y, batch_size=12, epochs=2, verbose=0, shuffle=False, callbacks=[backup])


def several_steps_per_execution(folder):
    """The last execution of an epoch has fewer steps than the others."""
    tfdist.data.write({"x": X, "y": Y}, folder / "data", processes=1)

    def inputs():
        yield "arrays", {"x": X, "y": Y, "batch_size": 4, "shuffle": False}
        yield "tfdist", {"x": tfdist.data.read(folder / "data", global_batch_size=4, label="y")}

    def model_of_two():
        model = model_of()
        model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=2)
        return model

    plain, mirrored = tf.distribute.get_strategy(), tfdist.strategies.MirroredStrategy(["CPU:0"])
    # at the beginning of an epoch and in its middle, with each input and in each scope, but for what is among the cases
    # of another number of steps
    cases = [(plain, "arrays", 0), (mirrored, "arrays", 2), (mirrored, "tfdist", 0)]
    for scope, name, batch in cases:
        with scope.scope():
            expected = model_of_two().fit(**dict(inputs())[name], epochs=3, verbose=0).history["loss"]
        backup = BackupAndRestore(folder / f"b {name}", save_freq=1, asynchronous=False)
        given, callbacks = dict(inputs())[name], [backup, Interrupt(1, batch)]
        with scope.scope():
            model = model_of_two()
        with pytest.raises(KeyboardInterrupt):
            model.fit(**given, epochs=3, verbose=0, callbacks=callbacks)
        with scope.scope():
            again = model_of_two().fit(**dict(inputs())[name], epochs=3, verbose=0, callbacks=[backup])
        assert again.history["loss"] == expected, (name, batch)


def in_an_evaluation(folder):
    """Outside of fit it does nothing."""
    model = model_of()
    model.evaluate(X, Y, verbose=0, callbacks=[BackupAndRestore(folder / "b")])
    model.predict(X, verbose=0, callbacks=[BackupAndRestore(folder / "b")])
    assert not (folder / "b").exists()


def in_an_object_store(folder):
    expected = fit(model_of(), []).history["loss"]
    interrupted(model_of(), [BackupAndRestore("memory://backup", save_freq=1, asynchronous=False)], 1, 1)
    assert fit(model_of(), [BackupAndRestore("memory://backup", save_freq=1)]).history["loss"] == expected


def halted_twice_in_one_validation(folder):
    """A job that is stopped in a validation, and again in the same one, resumes after the steps of that epoch."""

    class Halts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_test_batch_begin(self, batch, logs=None):
            if self.epoch == 1:
                table.ask_to_halt()
                table.set_target(table.read(0).position.step)  # the next one does not begin

    expected = fit(model_of(), [], validation_data=(X, Y)).history
    for life in range(2):
        table = StatusTable(folder / f"table {life}", 1)
        os.environ.update(TFDIST_PROGRESS_FILE=str(table.path), TFDIST_WORKER_INDEX="0")
        step_clock.cache_clear()
        with pytest.raises(SystemExit) as ended:
            fit(model_of(), [BackupAndRestore(folder / "b", save_freq=False), Halts()], validation_data=(X, Y))
        assert (ended.value.code, table.read(0).saved) == (HALTED, 6)  # steps, in two epochs
        table.close()
    step_clock.cache_clear()
    again = fit(model_of(), [BackupAndRestore(folder / "b")], validation_data=(X, Y))
    assert (again.history, again.epoch) == (expected, [0, 1, 2])


def what_other_callbacks_know(folder):
    """Each of Keras' callbacks goes on with what it knew; every field that is kept for it is one that it has."""

    def callbacks(name):
        return [
            keras.callbacks.ModelCheckpoint(
                folder / name / "{epoch}.weights.h5", "loss", save_best_only=True, save_weights_only=True, mode="max"
            ),
            keras.callbacks.ModelCheckpoint(folder / name / "a.weights.h5", save_weights_only=True, save_freq=4),
            keras.callbacks.TensorBoard(folder / name / "logs"),
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, cooldown=2),
        ]

    def averaging():
        model = model_of()
        model.compile(keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9), "mse", run_eagerly=True)
        return model

    expected, given, validation = callbacks("never"), callbacks("again"), {"validation_data": (X, Y)}
    model = averaging()
    fit(model, expected, **validation)
    backup = BackupAndRestore(folder / "b", asynchronous=False)
    interrupted(averaging(), [*callbacks("again"), backup], 2, 1, **validation)
    again = averaging()
    fit(again, [*given, BackupAndRestore(folder / "b")], **validation)
    for one, other in zip(expected, given, strict=True):
        names = [name for kind, names in callback_fields._FIELDS.items() if isinstance(one, kind) for name in names]
        assert names
        for name in names:
            np.testing.assert_equal(vars(other)[name], vars(one)[name], f"{type(one).__name__}.{name}")
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
