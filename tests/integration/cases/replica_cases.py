"""Cases of backups with state that each replica has of its own; each function asserts what must hold.

python replica_cases.py NAME FOLDER
"""

import contextlib
import logging
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.integration.cases.backup_cases import X, Y, fit, interrupted, model_of, raises
from tests.integration.cases.error_feedback import ErrorFeedback
from tfdist.callbacks import BackupAndRestore
from tfdist.checkpoint import ShardedState, Store
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError
from tfdist.optimizers import DistributedOptimizer


@contextlib.contextmanager
def warned(*words):
    """The block warns, and says all of these."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
    assert all(any(word in line for line in said) for word in words), said


def _replicas(count):
    return tfdist.strategies.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def _split_processor(count):
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


def accumulating_replicas(folder):
    """Check that the sums of each of two replicas are saved, and that training resumes from them to the bit."""
    _split_processor(2)

    def begun():
        strategy = _replicas(2)
        model = model_of(strategy=strategy)
        with strategy.scope():
            model.compile(ErrorFeedback(keras.optimizers.Adam(0.01), accumulate_steps=2), "mse")
        return model

    expected = begun()
    losses = fit(expected, [], epochs=4).history["loss"]  # three micro-batches in an epoch
    for epoch, batch in ((1, 0), (1, 1)):  # one in the middle of an accumulation, the other at its end
        place = folder / f"{epoch} {batch}"
        interrupted(begun(), [BackupAndRestore(place, save_freq=1, asynchronous=False)], epoch, batch, epochs=4)
        found = Store(place).newest()
        assert (found.state["steps"], found.count) == (3 * epoch + batch, 1)
        sums = {name: array for name, array in found.parts[0].items() if name.endswith("/sum")}
        rests = {name: array for name, array in found.parts[0].items() if name.endswith("/rest")}
        for arrays in (sums, rests):
            assert [name.split("/")[:2] for name in sorted(arrays)] == [["replica", "0"]] * 2 + [["replica", "1"]] * 2
        assert all(array.any() for array in sums.values()) == (batch == 0)
        assert all(array.any() for array in rests.values())
        assert not any(name.endswith(("/sum", "/rest")) for name in found.arrays)
        model = begun()
        assert fit(model, [BackupAndRestore(place, delete_checkpoint=False)], epochs=4).history["loss"] == losses
        for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    # as earlier versions saved it: the sums of the first replica, among what all have
    state = {name: value for name, value in found.state.items() if name != "shards"}
    first = {name.split("/", 2)[2]: np.ones_like(array) for name, array in found.parts[0].items()}
    Store(folder / "old").save(found.step, {**found.arrays, **first}, state)
    model = begun()
    with warned("an earlier version"):
        interrupted(model, [BackupAndRestore(folder / "old")], 1, 1, epochs=4)
    [some, *_] = model.optimizer.sharded_state()[0].variables
    assert [np.all(copy.numpy() == 1) for copy in tf_strategies.copies(some.value)] == [True, True]


class Remembering(DistributedOptimizer):
    """An optimizer with variables of which every replica has its own, one for each rule."""

    rules = ("keep", "reset", "sum", "concatenate")

    def build(self, variables):
        if not self.built:
            super().build(variables)
            rows = 6 // tf.distribute.get_strategy().num_replicas_in_sync
            self.memories = [
                self.add_variable((rows if rule == "concatenate" else 2,), name=rule) for rule in self.rules
            ]

    def sharded_state(self):
        made = self.memories if self.built else [()] * len(self.rules)
        own = [
            ShardedState(f"what is to {rule}", [one] if self.built else (), rule=rule)
            for rule, one in zip(self.rules, made, strict=True)
        ]
        return [*super().sharded_state(), *own]


def another_number_of_replicas(folder):
    """Check that the state of replicas follows its rules, that the log says so, and that an update loses nothing."""
    _split_processor(3)

    def begun(count):
        strategy = _replicas(count)
        model = model_of(strategy=strategy)
        with strategy.scope():
            model.compile(Remembering(keras.optimizers.SGD(0.1), accumulate_steps=2), "mse")
            model.optimizer.build(model.trainable_variables)
        return model

    def values(model):
        every = [*model.optimizer.memories, model.optimizer.sharded_state()[0].variables[0]]
        return [[copy.numpy().tolist() for copy in tf_strategies.copies(one.value)] for one in every]

    expected = fit(begun(1), [], epochs=2)
    model = begun(2)
    for one in model.optimizer.memories:
        for index, copy in enumerate(tf_strategies.copies(one.value)):
            copy.assign(np.arange(copy.shape[0]) + 10.0 * (index + 1))
    before = values(model)[:-1]
    interrupted(model, [BackupAndRestore(folder / "b", 1, asynchronous=False)], 1, 0, epochs=2)
    kept = BackupAndRestore(folder / "b", save_freq=False, delete_checkpoint=False)
    model, totals = begun(2), np.sum(values(model)[-1], axis=0)
    assert totals.any()
    interrupted(model, [kept], 1, 0, epochs=2)
    assert values(model)[:-1] == before
    model = begun(3)
    with warned("is of 2 replicas, and there are 3 now; the accumulated gradients: added up", "what is to reset: set"):
        interrupted(model, [kept], 1, 0, epochs=2)
    *found, sums = values(model)
    assert found == [
        [[10, 11], [20, 21], [10, 11]],
        [[0, 0]] * 3,
        [[10, float(np.float32(32 / 3))]] * 3,
        [[10, 11], [12, 20], [21, 22]],
    ]
    np.testing.assert_allclose(np.sum(sums, axis=0), totals, rtol=1e-6)
    history = fit(begun(1), [kept], epochs=2).history["loss"]
    np.testing.assert_allclose(history, expected.history["loss"], rtol=1e-5)
    # a saved model is of one device, whatever it was saved on and is loaded on
    model.save(folder / "ü.keras")
    same = [model]
    for count in (3, 2, 1):
        with _replicas(count).scope():
            model = keras.models.load_model(folder / "ü.keras", custom_objects={"Remembering": Remembering})
        same.append(model)
        *found, sums = values(model)
        cut = np.array_split([10, 11, 12, 20, 21, 22], count)
        assert found[:2] + found[3:] == [[[10, 11]] * count, [[0, 0]] * count, [part.tolist() for part in cut]]
        np.testing.assert_allclose(found[2], [[30 / count, 32 / count]] * count, rtol=1e-6)
        np.testing.assert_allclose(sums, [np.divide(totals, count)] * count, rtol=1e-6)
    for model in same:  # the second half of the accumulation
        model.train_on_batch(X[:4], Y[:4])
        assert not np.any(values(model)[-1])
        for ours, theirs in zip(model.get_weights(), same[0].get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    Remembering.rules = ("keep", "refuse", "sum", "concatenate")
    raises(ConfigError, ["another model", "refuse"], lambda: fit(begun(2), [kept]))
    model = begun(2)
    interrupted(model, [BackupAndRestore(folder / "r", 1, asynchronous=False)], 1, 0)
    raises(ConfigError, ["of one device", "what is to refuse"], lambda: model.save(folder / "r.keras"))
    raises(
        ConfigError,
        ["of 2 replicas", "what is to refuse"],
        lambda: fit(begun(3), [BackupAndRestore(folder / "r")]),
    )


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
