"""Train a small GPT on the help texts of Python, with weights or the optimizer in parts.

python strategies/transformer/train.py
tfdist run --strategy model-parallel -n 2 --mesh batch=1,model=2 strategies/transformer/train.py
tfdist run --strategy model-parallel -n 4 --mesh batch=2,model=2 strategies/transformer/train.py
tfdist run --strategy sharded-data-parallel -n 2 strategies/transformer/train.py
TFDIST_SHARDING_STAGE=3 tfdist run --strategy sharded-data-parallel -n 2 strategies/transformer/train.py

The model is plain Keras. Under `model-parallel` each process has its own attention heads, and its own columns and rows
of the layers between. Under `sharded-data-parallel` it updates its own part of the weights; under stage 3 it holds only
that part.
"""

import argparse
import math
import pydoc_data.topics
import sys
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

import tfdist

SEED = 17
CHARACTERS = 96  # the printable characters, and one for all others


def windows(context: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return rows of characters of Python's help texts, as numbers: for training, and the last tenth for tests.

    A row has one character more than the context: the last one to predict.
    """
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32) - 31
    codes = np.where((codes < 0) | (codes >= CHARACTERS), 0, codes)
    rows = codes[: len(codes) // (context + 1) * (context + 1)].reshape(-1, context + 1)
    cut = len(rows) * 9 // 10
    return rows[:cut], rows[cut:]


def places(context: int, width: int) -> NDArray[np.float32]:
    """Return sines and cosines of places in the context (A. Vaswani et al., "Attention Is All You Need", 2017)."""
    angles = np.arange(context)[:, np.newaxis] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def gpt(context: int, blocks: int, width: int, heads: int, dropout: float) -> keras.Model:
    layers = keras.layers
    characters = keras.Input((context,), dtype="int32")
    x = layers.Embedding(CHARACTERS, width)(characters) + places(context, width)
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(normal, normal, use_causal_mask=True)
        between = [layers.Dense(4 * width, "gelu"), layers.Dense(width), layers.Dropout(dropout)]
        x = x + keras.Sequential(between)(layers.LayerNormalization()(x))
    return keras.Model(characters, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment(layout_map="auto")
    keras.utils.set_random_seed(SEED)
    train, test = windows(options.context)
    with strategy.scope():
        model = gpt(options.context, options.blocks, options.width, options.heads, options.dropout)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.AdamW(options.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
        model.compile(optimizer, loss, metrics=["accuracy"])
    batch = options.batch_size
    history = model.fit(train[:, :-1], train[:, 1:], batch_size=batch, epochs=options.epochs, verbose=2).history
    tested = model.evaluate(test[:, :-1], test[:, 1:], batch_size=batch, verbose=0, return_dict=True)
    if tfdist.cluster.from_environment().is_chief:
        tfdist.parallel.describe(model)
        options.output.mkdir(parents=True, exist_ok=True)
        lines = [f"{epoch},{loss:.6f}" for epoch, loss in enumerate(history["loss"], start=1)]
        (options.output / "losses.csv").write_text("\n".join(["epoch,loss", *lines, ""]), encoding="utf-8")
        bits = tested["loss"] / math.log(2)
        sys.stdout.write(f"test loss            {tested['loss']:.4f}, {bits:.3f} bits for each character\n")
        sys.stdout.write(f"test accuracy        {tested['accuracy']:.4f} of the next characters\n")
        sys.stdout.write(f"wrote                {options.output / 'losses.csv'}\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a global batch; default: %(default)s")
    parser.add_argument("--context", type=int, default=64, help="visible characters; default: %(default)s")
    parser.add_argument("--blocks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=128, help="width of an activation; default: %(default)s")
    parser.add_argument("--heads", type=int, default=4, help="heads of an attention; default: %(default)s")
    parser.add_argument("--dropout", type=float, default=0.1, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/transformer", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
