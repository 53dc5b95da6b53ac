"""Compression under a strategy of several replicas; each function asserts what must hold.

python compression_cases.py NAME FOLDER
"""

import logging
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.integration.cases.backup_cases import Interrupt
from tfdist.callbacks import BackupAndRestore
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compression import DGC, QSGD, Auto, Codec, PowerSGD, RandomK, TopK, registry
from tfdist.optimizers import DistributedOptimizer

EVERY = int(os.environ.get("EVERY", "6"))  # how many steps lie between two losses of all; all steps among all codecs
BATCH, BATCHES = 6, 3
EPOCHS = 10 if EVERY == 1 else 6  # longer than the warm-up of DGC is
X = np.random.default_rng(0).normal(size=(BATCH * BATCHES, 24)).astype("float32")
Y = (X @ np.random.default_rng(1).normal(size=(24, 8))).astype("float32")
STATEFUL: list[Codec] = [
    *(QSGD(bits=8), TopK(density=0.1), DGC(density=0.1, factor_masking=True, warm_up_steps=12, clipnorm=1.0)),
    *(RandomK(density=0.1), PowerSGD(rank=2, start_after=4), registry.codec_of("signsgd")),
]
if EVERY == 1:
    STATEFUL += map(registry.codec_of, ("onebit", "threshold", "terngrad", "natural", "qsgd-2"))


def _replicas(count):
    return tfdist.strategies.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def _split_processor(count):
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


def _model(strategy, optimizer):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(32, "tanh", use_bias=False), keras.layers.Dense(8)]
        model = keras.Sequential([keras.Input((24,)), *layers])
        model.compile(optimizer(), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def _copies(model):
    """Return the copies of every variable on all replicas."""
    every = [*model.variables, *model.optimizer.variables]
    return [copy.numpy() for one in every for copy in tf_strategies.copies(one.value)]


def _overwrite(model):
    """Lose all that a process that is killed loses."""
    for one in [*model.variables, *model.optimizer.variables]:
        for copy in tf_strategies.copies(one.value):
            copy.assign(tf.ones_like(copy))


def _fit(model, callbacks=()):
    model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=list(callbacks))


def resumed_at_every_step(folder):
    """A training that loses all it has in memory at steps from 1 on ends with the bits of one that never does."""
    _split_processor(2)
    strategy = _replicas(2)
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.7)
    for first, codec in enumerate(STATEFUL, start=1):
        inner = keras.optimizers.SGD if codec.shown == "dgc" else keras.optimizers.Adam
        model = _model(strategy, lambda inner=inner, codec=codec: DistributedOptimizer(inner(rate), compression=codec))
        begun = [copy.copy() for copy in _copies(model)]
        _fit(model)
        expected = _copies(model)
        variables = [
            c for one in [*model.variables, *model.optimizer.variables] for c in tf_strategies.copies(one.value)
        ]
        for variable, value in zip(variables, begun, strict=True):
            variable.assign(value)
        backup = BackupAndRestore(folder / f"{first} {codec.shown}", save_freq=1, asynchronous=False)
        for step in range(first if EVERY > 1 else 1, BATCHES * EPOCHS, EVERY):
            try:
                _fit(model, [backup, Interrupt(step // BATCHES, step % BATCHES)])
            except KeyboardInterrupt:
                _overwrite(model)
            else:
                raise AssertionError(f"{codec.shown}: not interrupted in step {step}")
        _fit(model, [backup])
        for ours, theirs in zip(_copies(model), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=codec.shown)


def another_number_of_replicas(folder):
    """Check that the first update of three replicas, or of one, contains all that two replicas have held back."""
    _split_processor(3)
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)

    class Linear(keras.layers.Layer):
        """Its gradient is the same whatever its weights are."""

        def build(self, shape):
            self.kernel = self.add_weight((shape[-1], 40))

        def call(self, x):
            return keras.ops.matmul(x, self.kernel)

    def begun(count, codec):
        keras.utils.set_random_seed(1)
        with (strategy := _replicas(count)).scope():
            model = keras.Sequential([keras.Input((24,)), Linear()])
            inner = keras.optimizers.SGD(1.0)
            model.compile(DistributedOptimizer(inner, compression=codec), lambda y, p: keras.ops.mean(p, axis=-1))
        del strategy
        return model

    def fit(model, epochs, callbacks=()):
        model.fit(X, Y, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks))

    single = begun(1, None)
    fit(single, 2, [Stop(1)])
    cases = [
        (TopK(density=0.05), 3),
        (PowerSGD(rank=1), 3),
        (DGC(density=0.05, momentum=0.0), 3),
        (TopK(density=0.1), 1),
    ]
    for codec, count in cases:
        place = folder / f"{codec.shown} {count}"
        fit(begun(2, codec), 1, [BackupAndRestore(place, delete_checkpoint=False)])
        model = begun(count, codec)
        fit(model, 2, [BackupAndRestore(place, delete_checkpoint=False), Stop(1)])
        # four updates of two epochs of three: the fourth had all that the first three held back
        assert any("held back: added up" in line for line in said), said
        memories = [
            one for state in model.optimizer.sharded_state() if "held back" in state.name for one in state.variables
        ]
        assert memories
        assert not any(np.any(copy.numpy()) for one in memories for copy in tf_strategies.copies(one.value))
        for ours, theirs in zip(model.get_weights(), single.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


class Stop(keras.callbacks.Callback):
    """Ends training after the first batch of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now == self.epoch:
            self.model.stop_training = True


def not_finite(folder):
    """A gradient that is not finite on one replica is finite on none; with a loss scale the step leaves no trace.

    What every codec hands on is looked at before an update. That a step is skipped depends on what is remembered.
    """
    _split_processor(2)
    strategy = _replicas(2)
    done = []
    for name in registry.names():
        codec = registry.codec_of(name)
        if name in ("none", "auto") or codec in done:
            continue
        done.append(codec)
        with strategy.scope():
            weight = keras.Variable(tf.zeros([80, 40]), name="kernel")
            optimizers = [
                DistributedOptimizer(keras.optimizers.SGD(1.0), compression=codec, loss_scale=scale)
                for scale in ([None, "dynamic"] if name in ("topk", "dgc", "powersgd", "qsgd-8") else [None])
            ]
            for optimizer in optimizers:
                optimizer.build([weight])
        bad = np.ones([2, 80, 40], "f")
        bad[1, 3, 5] = np.nan

        def on_replica(number, optimizer, weight=weight, bad=bad):
            own = tf.constant(bad)[tf_strategies.replica_index()]
            optimizer.apply([tf.where(number > 0, own, tf.ones_like(own))], [weight])

        for optimizer in optimizers[::-1]:  # first the one that skips
            run = tf.function(lambda n, o=optimizer: strategy.run(on_replica, args=(n, o)), autograph=False)
            run(tf.constant(0.0))
            before = [c.numpy() for one in optimizer.reducer_variables for c in tf_strategies.copies(one.value)]
            run(tf.constant(1.0))
            copies = [copy.numpy() for copy in tf_strategies.copies(weight.value)]
            np.testing.assert_array_equal(copies[0], copies[1])
            assert np.all(np.isfinite(copies[0])) == (optimizer.loss_scale is not None), name
            if optimizer.loss_scale is not None:
                assert int(optimizer.skipped_steps.numpy()) == 1
                after = [c.numpy() for one in optimizer.reducer_variables for c in tf_strategies.copies(one.value)]
                for ours, theirs in zip(after, before, strict=True):
                    np.testing.assert_array_equal(ours, theirs, err_msg=name)


def nothing_to_compress(folder):
    """Without a gradient that is worth it, in 16 bits, on one replica and between replicas of a process: as without."""
    _split_processor(2)

    def weights(compression, count):
        keras.utils.set_random_seed(1)
        with _replicas(count).scope():
            model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(8)])
            model.compile(DistributedOptimizer("sgd", compression=compression), "mse")
        _fit(model)
        return model.get_weights()

    without = {count: weights(None, count) for count in (1, 2)}
    for compression, count in (("onebit", 1), ("auto", 2), (PowerSGD(rank=2, min_saving=100.0), 2), (Auto(), 1)):
        for ours, theirs in zip(weights(compression, count), without[count], strict=True):
            np.testing.assert_array_equal(ours, theirs)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
