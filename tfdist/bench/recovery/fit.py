"""A script for `tfdist run`: trains the model of the benchmark of recoveries with `fit` and BackupAndRestore.

python -m tfdist.bench.recovery.fit FOLDER MEGABYTES BATCH_SIZE STEPS
"""

import sys

import tensorflow as tf

import tfdist
from tfdist.bench.recovery.model import examples, note_size, perceptron
from tfdist.callbacks import BackupAndRestore


def main(folder: str, megabytes: float, batch_size: int, steps: int) -> None:
    """Train so many steps."""
    with tfdist.strategies.from_environment().scope():
        model = perceptron(megabytes)
    if tfdist.cluster.from_environment().is_chief:
        note_size(f"{folder}/notes", model)
    x = examples(model, batch_size)
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(batch_size).cache().repeat()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[BackupAndRestore(f"{folder}/backup")])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
