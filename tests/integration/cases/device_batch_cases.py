"""Trainings whose batches are copied to devices ahead of their steps, beside those that take the host's."""

from typing import Any

import keras
import mirrored_cases
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.compat.tensorflow.device_batches import Ahead, DeviceIterator
from tfdist.training.epoch import Batch
from tfdist.training.global_batches import Input

X, Y = mirrored_cases.X, mirrored_cases.Y


class _Early(tfdist.strategies.MirroredStrategy):
    """Treats processors as GPUs, and notes what its inputs are."""

    kinds: list[bool]

    @property
    def _ahead(self) -> Ahead | None:
        return Ahead(tuple(self.extended.worker_devices), 2)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        made = super().experimental_distribute_dataset(dataset, options)
        assert isinstance(made, Input)
        self.kinds.append(isinstance(iter(made)._elements, DeviceIterator))
        return made


def _numbers(strategy: tf.distribute.Strategy, steps: int) -> list[list[float]]:
    with strategy.scope():
        network = mirrored_cases.model(optimizer=keras.optimizers.Adam(0.1), metrics=["mae"], steps_per_execution=steps)
    history = network.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(X[:9], Y[:9]))
    found = [*network.get_weights(), *history.history.values(), network.predict(X, batch_size=8, verbose=0)]
    return [np.ravel(one).tolist() for one in found]


def early_and_late() -> dict[str, Any]:
    """The numbers of both kinds of training, with one replica and with two, and with several steps in a graph."""
    seen = {}
    for devices, steps in ((["CPU:0"], 1), (["CPU:0", "CPU:1"], 3)):
        early = _Early(devices)
        early.kinds = []
        pair = [_numbers(one, steps) for one in (early, tfdist.strategies.MirroredStrategy(devices))]
        seen[f"{len(devices)} x {steps}"] = {"equal": pair[0] == pair[1], "early": early.kinds}
    return seen


def devices_of_a_batch() -> list[str]:
    """The devices of a batch's tensors: of each replica the number of examples, x and y."""
    early = _Early(["CPU:0", "CPU:1"])
    early.kinds = []
    seen: list[str] = []
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    made = Input(data, batches=None, share=early.share, workers=early.workers, ahead=early._ahead)
    for batch in iter(made):
        assert isinstance(batch, Batch)
        seen = [tensor.device.rpartition("/device:")[2] for tensor in batch.tensors]
    made.end()
    return seen
