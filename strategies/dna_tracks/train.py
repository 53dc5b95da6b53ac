"""Predict tracks along DNA from its sequence: one-hot letters, dilated convolutions, counts of reads.

python strategies/dna_tracks/train.py
tfdist run --strategy multi-worker -n 2 strategies/dna_tracks/train.py

The records have the format of Basenji's data: compressed TFRecords of one-hot letters as bytes and of float16 targets
for bins of letters. The sequences are generated: a pair of motifs at some distance causes reads, on either strand.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from generated_dna import BIN, TRACKS, sequences, write

import tfdist

SEED = 17


def decoding(length: int) -> Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Return a function that decodes a record's bytes; known lengths make them dense tensors, not ragged ones."""

    def decode(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        letters = tf.reshape(tf.io.decode_raw(example["sequence"], tf.uint8), [length, 4])
        reads = tf.reshape(tf.io.decode_raw(example["target"], tf.float16), [length // BIN, TRACKS])
        return {"letters": tf.cast(letters, tf.float32), "reads": tf.cast(reads, tf.float32)}

    return decode


def other_strand(example: dict[str, tf.Tensor], seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Read half of the sequences from the other strand: backwards, with the letters that pair with them."""
    is_turned = tf.random.stateless_uniform([], seed) < 0.5
    letters, reads = example["letters"], example["reads"]
    return tf.cond(is_turned, lambda: (letters[::-1, ::-1], reads[::-1]), lambda: (letters, reads))


def build(length: int, filters: int, dilated: int) -> keras.Model:
    layers = keras.layers
    letters = keras.Input((length, 4))
    x = layers.MaxPooling1D(BIN)(layers.Conv1D(filters, 15, padding="same", activation="gelu")(letters))
    for power in range(dilated):
        near = layers.Conv1D(filters, 3, padding="same", dilation_rate=2**power, activation="gelu")(x)
        x = x + layers.Conv1D(filters, 1)(near)
    return keras.Model(letters, layers.Dense(TRACKS, "softplus")(x))


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(SEED)
    files = {part: options.output / f"{part}-{options.sequences}x{options.length}.tfr" for part in ("train", "test")}
    write(files["train"], options.sequences, options.length, SEED)
    write(files["test"], options.sequences // 4, options.length, SEED + 1)
    how = {"global_batch_size": options.batch_size, "tail": "keep", "decode": decoding(options.length)}
    train = tfdist.data.read(files["train"], seed=SEED, augment=other_strand, **how)
    test = tfdist.data.read(files["test"], order="none", label="reads", **how)
    with strategy.scope():
        model = build(options.length, options.filters, options.dilated)
        model.compile(keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0), keras.losses.Poisson())
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    found = model.predict(test, verbose=0)
    if tfdist.cluster.from_environment().is_chief:
        letters, reads = sequences(options.sequences // 4, options.length, SEED + 1)
        related = [np.corrcoef(found[..., track].ravel(), reads[..., track].ravel())[0, 1] for track in range(TRACKS)]
        print(f"training             {options.sequences:,} sequences of {letters.shape[1]:,} letters")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"]))
        print(
            "correlation          " + ", ".join(f"track {at} {one:.4f}" for at, one in enumerate(related)), flush=True
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, told in (
        ("--sequences", 1000, "sequences for training"),
        ("--length", 1024, "letters of a sequence"),
        ("--filters", 48, "filters of a convolution"),
        ("--dilated", 4, "dilated convolutions, each over twice the distance of the previous one"),
        ("--epochs", 10, "passes over all sequences"),
        ("--batch-size", 32, "global batch size"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{told}; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/dna_tracks", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
