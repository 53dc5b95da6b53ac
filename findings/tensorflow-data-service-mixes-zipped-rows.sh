#!/usr/bin/env bash
# Finding: the tf.data service pairs images with labels of other rows, if the two were zipped.
#
# Versions: TensorFlow 2.21.0, Python 3.11.
# Behaviour: in the mode "distributed_epoch" the dispatcher divides each source of a dataset among the workers, row by
# row or file by file. A zip has two sources, which are divided independently: a worker may get the third image and the
# fourth label. Each image and each label arrives once, in shapes that fit, so only the accuracy shows it. With one
# worker, as in most tests, all pairs are right. skip, take and enumerate count the rows of each worker, so two workers
# skip twice as many. Slices of a tuple or a dictionary are one source, and remain pairs.
# Output seen: one worker: 2000 rows, all pairs right: True; two workers: 2000 rows, all pairs right: False;
# slices of a tuple, two workers: all pairs right: True; skip(100): 1900 rows, with two workers 1800
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf

service = tf.data.experimental.service
ROWS = 2000


def served(dataset, workers):
    """Return the rows of a dataset that a service with this many workers computes."""
    dispatcher = service.DispatchServer()
    config = service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
    servers = [service.WorkerServer(config) for _ in range(workers)]
    rows = list(dataset.apply(service.distribute("distributed_epoch", dispatcher.target)).as_numpy_iterator())
    assert len(servers) == workers
    return rows


def right(rows):
    """Say whether each label is that of its image, and check that all images and all labels are there."""
    for column in zip(*rows, strict=True):
        assert sorted(column) == list(range(ROWS))
    return all(image == label for image, label in rows)


images, labels = tf.data.Dataset.range(ROWS), tf.data.Dataset.range(ROWS)
zipped = tf.data.Dataset.zip((images, labels))
sliced = tf.data.Dataset.from_tensor_slices((np.arange(ROWS), np.arange(ROWS)))
one, two, slices = right(served(zipped, 1)), right(served(zipped, 2)), right(served(sliced, 2))
skipped = [len(served(images.skip(100), workers)) for workers in (1, 2)]
print(f"one worker: {ROWS} rows, all pairs right: {one}; two workers: {ROWS} rows, all pairs right: {two};")
print(f"slices of a tuple, two workers: all pairs right: {slices}; ", end="")
print(f"skip(100): {skipped[0]} rows, with two workers {skipped[1]}")
assert one and slices and not two, "the behaviour has changed"
assert skipped == [ROWS - 100, ROWS - 200], "the behaviour has changed"
PROGRAM
