"""Train a small language model on packed texts, over a pipeline whose stages have replicas.

python strategies/packed_language/train.py
tfdist run --strategy pipeline -n 2 strategies/packed_language/train.py
tfdist run --strategy pipeline -n 4 --mesh data=2,pipeline=2 strategies/packed_language/train.py

The texts are docstrings of installed packages, and each character is a token. They are packed into rows of one length,
without padding. A character attends only to its own text, and the last one does not predict the next text.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.testing.installed_texts import docstrings

SEED, CHARACTERS = 17, 96  # the printable characters, and one for all others


def texts(packages: list[str]) -> Iterator[np.ndarray]:
    """Yield the docstring of each module, class and function as numbers of characters."""
    for text in (text for package in packages for text in docstrings(package)):
        codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32) - 31
        yield np.where((codes < 0) | (codes >= CHARACTERS), 0, codes)


def rows(folder: Path, context: int, batch: int, *, order: str = "full") -> tfdist.data.Reading:
    """Read packed rows, which have one character more than the context: the last one to predict."""

    def foretold(row: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        document = row["document"]
        is_same = (document[1:] == document[:-1]) & (document[1:] > 0)
        x = {"tokens": row["tokens"][:-1], "document": document[:-1], "position": row["position"][:-1]}
        return x, row["tokens"][1:], tf.cast(is_same, tf.float32)

    packed = tfdist.data.pack(folder, "tokens", context + 1, seed=SEED)
    return tfdist.data.read(packed, global_batch_size=batch, seed=SEED, order=order, tail="pad", decode=foretold)


def gpt(context: int, blocks: int, width: int, heads: int) -> keras.Model:
    """Return a model that encodes places by sines and cosines, for texts of any length."""
    layers, ops = keras.layers, keras.ops
    given = {name: keras.Input((context,), dtype="int32", name=name) for name in ("tokens", "document", "position")}
    rates = np.float32(1 / 10_000 ** (np.arange(0, width, 2) / width))
    angles = ops.cast(given["position"], "float32")[..., None] * rates
    x = layers.Embedding(CHARACTERS, width)(given["tokens"]) + ops.concatenate([ops.sin(angles), ops.cos(angles)], -1)
    own = ops.equal(given["document"][:, :, None], given["document"][:, None, :])
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        attend = layers.MultiHeadAttention(heads, width // heads)
        x = x + attend(normal, normal, attention_mask=own, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(given, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(SEED)
    found = list(texts(options.packages))[: options.texts]
    folder = options.output / f"texts-{len(found)}-{sum(map(len, found))}"  # differs with other packages
    order = np.random.default_rng(SEED).permutation(len(found))
    parts = {"test": order[: len(found) // 10], "train": order[len(found) // 10 :]}
    for part, numbers in parts.items():
        tfdist.data.write({"tokens": [found[number] for number in numbers]}, folder / part, exists="keep")
    train = rows(folder / "train", options.context, options.batch_size)
    test = rows(folder / "test", options.context, options.batch_size, order="none")
    with strategy.scope():
        model = gpt(options.context, options.blocks, options.width, options.heads)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0)
        of_each = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nats")  # weighted, not per row
        model.compile(optimizer, loss, weighted_metrics=["accuracy", of_each])
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    tested = model.evaluate(test, verbose=0, return_dict=True)
    if tfdist.cluster.from_environment().is_chief:
        lengths = np.array([len(found[number]) for number in parts["train"]])
        padded = -(-lengths // options.context).sum()
        print(f"training             {len(lengths):,} texts in {len(train.examples):,} rows; {padded:,} if padded")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"]))
        print(f"test loss            {tested['nats']:.4f} of a character")
        print(f"test accuracy        {tested['accuracy']:.4f} of the next characters")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = ["keras", "numpy"]
    parser.add_argument("--packages", nargs="+", default=defaults, help="packages with the texts; default: %(default)s")
    parser.add_argument("--texts", type=int, default=600, help="number of texts; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a global batch; default: %(default)s")
    parser.add_argument("--context", type=int, default=128, help="characters of a row; default: %(default)s")
    parser.add_argument("--blocks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=64, help="width of an activation; default: %(default)s")
    parser.add_argument("--heads", type=int, default=4, help="heads of an attention; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/packed_language", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
