"""A script that ends with every kind of input unfinished: generators that are waited for, calls that raised, loops.

python unfinished_inputs.py FOLDER [CALL ...]      runs these calls or all; FOLDER/ended.WORKER is its last line

Each generator works far ahead, so that its thread is inside Python at every moment, also at the end of the process. The
garbage collector runs then only, and finds what is held in a cycle. No thread may start then: Python 3.12 starts none.
"""

import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist

ROWS = 6
FIT: dict[str, Any] = {"steps_per_epoch": 2, "epochs": 2, "verbose": 0}
RAISING = ("a raising step", "a raising epoch", "an interrupt", "a failing input", "a PyDataset that is left")
opened: list[int] = []
closed: list[int] = []


def numbers(*shape: int) -> np.ndarray:
    return np.ones(shape, "float32")


def refused(thread: threading.Thread) -> None:
    """Start no thread, as Python 3.12 does at its exit."""
    print(f"refused: {thread.name}", flush=True)
    raise RuntimeError("can't create new thread at interpreter shutdown")


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    opened.append(1)
    try:
        while True:
            time.sleep(0.005)
            yield numbers(ROWS, 4), numbers(ROWS, 1)
    finally:
        closed.append(1)


def generated() -> tf.data.Dataset:
    signature = (tf.TensorSpec((ROWS, 4)), tf.TensorSpec((ROWS, 1)))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).repeat().prefetch(10**6)


def failing() -> tf.data.Dataset:
    def fail(number: np.int64) -> np.int64:
        if number == 1:
            raise ValueError("as asked")
        return number

    def checked(number: tf.Tensor, batch: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(fail, [number], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    return generated().enumerate().map(checked)


def mapped() -> tf.data.Dataset:
    def batch(number: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.005)
        return numbers(ROWS, 4), numbers(ROWS, 1)

    def called(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = tf.py_function(batch, [number], [tf.float32, tf.float32])
        return tf.ensure_shape(x, (ROWS, 4)), tf.ensure_shape(y, (ROWS, 1))

    return tf.data.Dataset.range(10**6).map(called, num_parallel_calls=2).prefetch(10**6)


class Batches(keras.utils.PyDataset):
    """An endless input whose next batches two threads make."""

    def __init__(self) -> None:
        super().__init__(workers=2)

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.005)
        return numbers(ROWS, 4), numbers(ROWS, 1)


class Raising(keras.callbacks.Callback):
    """Raises in the middle of an epoch, or at its end."""

    def __init__(self, error: type[BaseException], *, in_step: bool) -> None:
        super().__init__()
        self.error, self.in_step = error, in_step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.in_step:
            raise self.error("as asked")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise self.error("as asked")


class Cycle:
    """Holds something until the garbage collector runs, or the process ends."""

    def __init__(self, held: Any) -> None:
        self.me, self.held = self, held


def main(folder: Path, *chosen: str) -> None:
    gc.set_threshold(0)
    strategy = tfdist.strategies.from_environment()

    def made() -> keras.Model:
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="second")]
            )
            model.compile("sgd", "mse")
        return model

    model, raised = made(), []

    def raising(error: type[BaseException], data: Any, *, in_step: bool) -> None:
        try:
            model.fit(data, callbacks=[Raising(error, in_step=in_step)], **FIT)
        except error as caught:
            raised.append(caught)  # with the frames that it came through

    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: model.fit(generated(), validation_data=generated(), validation_steps=2, **FIT),
        "evaluate": lambda: model.evaluate(generated(), steps=2, verbose=0),
        "predict": lambda: model.predict(generated().map(lambda x, y: x).prefetch(10**6), steps=2, verbose=0),
        "a raising step": lambda: raising(ValueError, generated(), in_step=True),
        "a raising epoch": lambda: raising(ValueError, generated(), in_step=False),
        "an interrupt": lambda: raising(KeyboardInterrupt, generated(), in_step=True),
        "a failing input": lambda: raising(tf.errors.OpError, failing(), in_step=False),
        "Python's map": lambda: model.fit(mapped(), **FIT),
        "a PyDataset": lambda: model.fit(Batches(), **FIT | {"epochs": 1}),
        "a PyDataset that is left": lambda: raising(ValueError, Batches(), in_step=True),
        "a generator": lambda: model.fit(batches(), **FIT),
    }
    for name in chosen or calls:
        calls[name]()
        if name != "a generator":  # which Keras holds
            assert len(opened) == len(closed), f"after {name} {len(opened) - len(closed)} generators go on"
    assert len(raised) == len([name for name in chosen or calls if name in RAISING])
    made().fit(generated(), **FIT)  # of a second model
    elements = iter(generated())  # of a loop that nobody ends
    next(elements)
    Cycle([elements, model, raised])
    atexit.register(setattr, threading.Thread, "start", refused)  # registered last, so it is called first
    (folder / f"ended.{os.environ.get('TFDIST_WORKER_INDEX', 0)}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
