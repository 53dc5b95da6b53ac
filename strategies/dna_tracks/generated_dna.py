"""Generated DNA with words to which proteins bind, and the reads that they draw, in records of Basenji's form."""

import secrets
from pathlib import Path

import numpy as np
import tensorflow as tf

BIN, TRACKS = 16, 2
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
    under_way = path.with_suffix(f".{secrets.token_hex(8)}")  # containers of several hosts may have one PID
    with tf.io.TFRecordWriter(str(under_way), tf.io.TFRecordOptions(compression_type="ZLIB")) as writer:
        for letters, reads in zip(*sequences(count, length, seed), strict=True):
            one_hot = np.eye(4, dtype=bool)[letters]
            values = {"sequence": one_hot.tobytes(), "target": reads.astype(np.float16).tobytes()}
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    under_way.replace(path)
