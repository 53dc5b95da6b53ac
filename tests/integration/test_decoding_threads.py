"""The input decodes in its own threads: no operation of the step, which may launch a GPU kernel, waits for them."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.integration.agents import DEADLINE_SECONDS, wait_until
from tests.integration.test_device_batches import AHEAD, BATCH, TWO
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow.device_batches import Ahead
from tfdist.training.global_batches import Input

pytestmark = pytest.mark.quick

SHAPE = (2, 2, 3)
THREADS = len(os.sched_getaffinity(0))


@tf.function
def step(x: tf.Tensor) -> tf.Tensor:
    """Compute two products, which TensorFlow runs in threads of its pool."""
    return tf.reduce_sum(x @ x + x @ (x + 1.0))


@pytest.mark.parametrize("ahead", [None, AHEAD], ids=["on the host", "ahead"])
def test_a_step_does_not_wait_for_pictures(tmp_path: Path, ahead: Ahead | None) -> None:
    picture = bytes(tf.io.encode_png(tf.zeros(SHAPE, tf.uint8)).numpy())
    tfdist.data.write({"image": [picture] * 5 * BATCH, "label": np.arange(5 * BATCH)}, tmp_path)
    stepped = threading.Event()
    decoding: set[int] = set()
    placed: set[str] = set()

    def wait(pixels: Any) -> Any:
        decoding.add(threading.get_native_id())
        stepped.wait(DEADLINE_SECONDS)
        return pixels

    def decode(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        pixels = tf.io.decode_jpeg(example["image"], channels=3)
        placed.add(pixels.device)
        return {**example, "image": tf.ensure_shape(tf.numpy_function(wait, [pixels], tf.uint8), SHAPE)}

    with tf.device("/device:CPU:0"):
        reading = tfdist.data.read(tmp_path, global_batch_size=BATCH, decode=decode)
    early = Input(reading, batches=None, share=TWO, workers=Workers(), ahead=ahead)
    epoch = iter(early)
    first = threading.Thread(target=next, args=(epoch,))
    first.start()
    wait_until(lambda: len(decoding) >= min(2, THREADS), "no thread decodes")
    stepping = threading.Thread(target=step, args=(tf.ones([64, 64]),))
    stepping.start()
    stepping.join(DEADLINE_SECONDS / 4)
    has_stepped = not stepping.is_alive()
    stepped.set()
    stepping.join()
    first.join()
    early.end()
    del epoch
    assert has_stepped, "all threads of TensorFlow decode"
    assert placed <= {""}, "a function of tf.data runs where the pipeline does, on the host"
    wait_until(
        lambda: not any(Path(f"/proc/self/task/{thread}").exists() for thread in decoding),
        "threads that decode outlive the input",
    )
