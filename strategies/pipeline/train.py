"""Train a small GPT whose blocks are on the stages of a pipeline.

python strategies/pipeline/train.py
tfdist run --strategy pipeline -n 2 strategies/pipeline/train.py
TFDIST_SCHEDULE=gpipe tfdist run --strategy pipeline -n 2 strategies/pipeline/train.py
tfdist run --strategy pipeline -n 4 --mesh data=2,pipeline=2 strategies/pipeline/train.py

The GPT is plain Keras, and learns the digits of sums such as 27+58=85 from their characters. Each stage holds its
layers and their optimizer slots. A batch goes through the stages in micro-batches (TFDIST_MICROBATCHES, 8). The numbers
are those of one device, whatever the number of stages and the schedule.
"""

import argparse
import sys
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

import tfdist

SEED = 17
SYMBOLS = "0123456789+="


def sums(most: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return all sums of two numbers up to `most` as rows of symbols, in a fixed random order; a tenth is for tests.

    The digits of the result are reversed, in the order of addition on paper.
    """
    width = len(str(2 * most))
    places = len(str(most))
    texts = [
        f"{a:0{places}}+{b:0{places}}={f'{a + b:0{width}}'[::-1]}" for a in range(most + 1) for b in range(most + 1)
    ]
    rows = np.array([[SYMBOLS.index(symbol) for symbol in text] for text in texts], np.int32)
    rows = np.random.default_rng(SEED).permutation(rows)
    cut = len(rows) * 9 // 10
    return rows[:cut], rows[cut:]


class Places(keras.layers.Layer):
    """Adds a learned vector for each place."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.table


def gpt(context: int, blocks: int, width: int, heads: int) -> keras.Model:
    layers = keras.layers
    symbols = keras.Input((context,), dtype="int32")
    x = Places()(layers.Embedding(len(SYMBOLS), width)(symbols))
    for number in range(blocks):
        normal = layers.LayerNormalization(name=f"block_{number}")(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(symbols, layers.Dense(len(SYMBOLS))(layers.LayerNormalization()(x)))


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(SEED)
    train, test = sums(options.most)
    asked = train.shape[1] // 2 + 1  # the part before the equals sign is not to be learned
    weights = np.arange(train.shape[1] - 1) >= asked
    with strategy.scope():
        model = gpt(train.shape[1] - 1, options.blocks, options.width, options.heads)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0)
        model.compile(optimizer, loss, weighted_metrics=["accuracy"])
    given, batch = train[:, :-1], options.batch_size
    shown = np.broadcast_to(weights.astype(np.float32), given.shape)
    history = model.fit(given, train[:, 1:], batch, options.epochs, verbose=2, sample_weight=shown).history
    tested = model.evaluate(
        test[:, :-1], test[:, 1:], batch, verbose=0, sample_weight=shown[: len(test)], return_dict=True
    )
    if tfdist.cluster.from_environment().is_chief:
        tfdist.parallel.describe(model)
        options.output.mkdir(parents=True, exist_ok=True)
        lines = [f"{epoch},{value:.6f}" for epoch, value in enumerate(history["loss"], start=1)]
        (options.output / "losses.csv").write_text("\n".join(["epoch,loss", *lines, ""]), encoding="utf-8")
        sys.stdout.write(f"test loss            {tested['loss']:.4f}\n")
        sys.stdout.write(f"test accuracy        {tested['accuracy']:.4f} of the digits of sums that it has not seen\n")
        sys.stdout.write(f"wrote                {options.output / 'losses.csv'}\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--most", type=int, default=99, help="largest number to add; default: %(default)s")
    parser.add_argument("--blocks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=64, help="width of an activation; default: %(default)s")
    parser.add_argument("--heads", type=int, default=4, help="heads of an attention; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/pipeline", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
