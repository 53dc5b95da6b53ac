"""Train over a slow network, with gradients that a codec compresses.

tfdist run -n 2 strategies/compression/train.py --compression powersgd
tfdist run -n 2 strategies/compression/train.py --compression auto
tfdist run --strategy ring -n 2 strategies/compression/train.py --compression dgc --data text

There are two tasks, with data that every machine has: handwritten digits, and the next character of the help texts of
Python. `--compression none` sends every number. The card has the results of each codec.
"""

import argparse
import pydoc_data.topics
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import tfdist
from tfdist.compression import DGC
from tfdist.optimizers import DistributedOptimizer
from tfdist.testing import digits

DATA = ("digits", "text")
BATCH = 64
CONTEXT, CHARACTERS = 16, 96  # for texts: visible characters; the printable characters, and one for all others
RATE, MOMENTUM = 0.05, 0.9


class Task(NamedTuple):
    """A task to learn: arrays of inputs and labels, and the layers of a model for them."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    layers: list[Any]


def task(data: str) -> Task:
    """Return a task; its layers are to be made in the strategy's scope."""
    if data == "digits":
        found = digits.load_digits()
        train = (found.train_images, found.train_labels)
        layers = [keras.layers.Flatten(), keras.layers.Dense(512, "relu"), keras.layers.Dense(256, "relu")]
        return Task(train, (found.test_images, found.test_labels), [*layers, keras.layers.Dense(10)])
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype("int32") - 31
    codes = np.where((codes < 0) | (codes >= CHARACTERS), 0, codes)[:60_000]
    windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)[::3]
    x, y = windows[:, :-1], windows[:, -1]
    cut = len(x) * 9 // 10
    layers = [keras.layers.Embedding(CHARACTERS, 24), keras.layers.Flatten(), keras.layers.Dense(512, "relu")]
    return Task((x[:cut], y[:cut]), (x[cut:], y[cut:]), [*layers, keras.layers.Dense(CHARACTERS)])


def optimizer(compression: Any, updates: int) -> DistributedOptimizer:
    """Return SGD with momentum, which DGC has itself."""
    rate = keras.optimizers.schedules.CosineDecay(RATE, max(1, updates))
    if compression == "dgc":
        codec = DGC(density=0.01, momentum=MOMENTUM, factor_masking=False, warm_up_steps=updates // 5)
        return DistributedOptimizer(keras.optimizers.SGD(rate), compression=codec)
    return DistributedOptimizer(keras.optimizers.SGD(rate, momentum=MOMENTUM), compression=compression)


def train(data: str, compression: Any, strategy: Any, *, epochs: int, seed: int, verbose: Any = 0) -> dict[str, Any]:
    """Train, and return the accuracy on the test data and the losses."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        given = task(data)
        model = keras.Sequential([keras.Input(given.train[0].shape[1:]), *given.layers])
        updates = epochs * -(-len(given.train[0]) // BATCH)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(compression, updates), loss, metrics=["accuracy"])
    history = model.fit(*given.train, batch_size=BATCH, epochs=epochs, verbose=verbose).history
    tested = model.evaluate(*given.test, batch_size=256, verbose=0, return_dict=True)
    return {"accuracy": tested["accuracy"], "loss": tested["loss"], "losses": history["loss"]}


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    found = train(options.data, options.compression, strategy, epochs=options.epochs, seed=17, verbose=2)
    if tfdist.cluster.from_environment().is_chief:
        options.output.mkdir(parents=True, exist_ok=True)
        lines = [f"{epoch},{loss:.6f}" for epoch, loss in enumerate(found["losses"], start=1)]
        (options.output / "losses.csv").write_text("\n".join(["epoch,loss", *lines, ""]), encoding="utf-8")
        print(f"test accuracy        {found['accuracy']:.4f}, loss {found['loss']:.4f}", flush=True)
        print(f"wrote                {options.output / 'losses.csv'}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="digits", help="default: %(default)s")
    parser.add_argument("--compression", default="auto", metavar="NAME", help="a codec, auto or none; default: auto")
    parser.add_argument("--epochs", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/compression", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
