"""The files of tfdist that a replica's gradients enter on their way from the tape to the optimizer's update."""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies

PACKAGE = Path(tfdist.__file__).parent
TAKEN, APPLIED = tf.GradientTape.gradient.__code__, keras.optimizers.Optimizer.apply.__code__


def files(collectives: str) -> list[str]:
    """Trace the step of a small dense model under a mirrored strategy; recording is not part of the way."""
    tfdist.strategies.use_logical_cpus(2)
    strategy = tfdist.strategies.MirroredStrategy(collectives=collectives)
    with strategy.scope():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dense(1)])
        network.compile(keras.optimizers.SGD(0.1), "mse")
    entered: set[str] = set()
    on_the_way: set[int] = set()  # threads, of which each replica has one

    def note(frame: FrameType, event: str, _: Any) -> None:
        here = threading.get_ident()
        if event == "return" and frame.f_code is TAKEN:
            on_the_way.add(here)
        elif event == "call" and frame.f_code is APPLIED:
            on_the_way.discard(here)
        elif event == "call" and here in on_the_way:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                entered.add(str(path.relative_to(PACKAGE)))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        network.fit(np.ones((8, 4), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(one for one in entered if not one.startswith("monitor/"))
