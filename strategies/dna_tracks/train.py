"""Foretell tracks along DNA from its sequence: one-hot letters, dilated convolutions, counts of reads.

python strategies/dna_tracks/train.py
tfdist run --strategy multi-worker -n 2 strategies/dna_tracks/train.py

The records have the form of Basenji's data: compressed TFRecords of one-hot letters as bytes and of float16 targets for
bins of letters. The sequences are generated, and say so: a pair of motifs at a distance draws reads, on either strand.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

SEED, BIN, TRACKS = 17, 16, 2
MOTIFS = ("TGACTCA", "CACGTGAC", "GGGCGGGG")  # AP-1, USF and SP1 bind to such words


def sequences(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return letters, 0 to 3, and reads in each bin: track 0 where two motifs are near, track 1 where SP1's is."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(4, size=(count, length))
    expected = np.full((count, length // BIN, TRACKS), 0.3)
    motifs = [np.array(["ACGT".index(letter) for letter in motif]) for motif in MOTIFS]
    for row, bins in zip(letters, expected, strict=True):
        for _ in range(rng.poisson(length / 150)):
            first, distance = rng.integers(length - 80), rng.integers(12, 60)
            kind = rng.integers(4)  # a pair, one alone of either, SP1
            for which, begin in ((0, first), (1, first + distance)):
                if kind in (0, which + 1):
                    row[begin : begin + len(motifs[which])] = motifs[which]
            if kind == 3:
                word = motifs[2] if rng.random() < 0.5 else 3 - motifs[2][::-1]  # on the other strand, backwards
                row[first : first + len(word)] = word
            if kind in (0, 3):
                middle = (first + (distance // 2 if kind == 0 else 4)) // BIN
                near = np.clip([middle - 1, middle, middle + 1], 0, len(bins) - 1)
                np.add.at(bins[:, kind // 3], near, [3.0, 6.0, 3.0])
    return letters, rng.poisson(expected)


def write(path: Path, count: int, length: int, seed: int) -> None:
    """Write records as Basenji does; all workers may, since all write the same."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    under_way = path.with_suffix(f".{os.getpid()}")
    with tf.io.TFRecordWriter(str(under_way), tf.io.TFRecordOptions(compression_type="ZLIB")) as writer:
        for letters, reads in zip(*sequences(count, length, seed), strict=True):
            one_hot = np.eye(4, dtype=bool)[letters]
            values = {"sequence": one_hot.tobytes(), "target": reads.astype(np.float16).tobytes()}
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    under_way.replace(path)


def decoding(length: int) -> Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Return what makes numbers of a record's bytes; with lengths that are known they are tensors, not ragged ones."""

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
        ("--sequences", 1000, "to learn from"),
        ("--length", 1024, "letters of each"),
        ("--filters", 48, "of a convolution"),
        ("--dilated", 4, "convolutions, each over twice the distance of the last"),
        ("--epochs", 10, "over all sequences"),
        ("--batch-size", 32, "global"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{told}; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument(
        "--output", type=Path, default=Path("runs", Path(__file__).parent.name), help="folder; default: %(default)s"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
