#!/usr/bin/env bash
# Finding: of concatenated ZLIB files of TFRecords TensorFlow reads the first alone; of GZIP files it reads all.
#
# Versions: TensorFlow 2.21.0, Python 3.11.
# Behaviour: two shards with compression_type="GZIP" may be joined by `cat`: the reader continues with the next member.
# With "ZLIB" it stops at the end of the first stream, without an error, so half of the records are gone. A plain file
# cut inside the eight bytes of a record's length also ends early without an error; a cut inside a record raises.
# Output seen: GZIP: 2000; ZLIB: 1000; plain, cut in a length: 1; plain, cut in a record: DataLossError
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import os

import tensorflow as tf


def written(path, count, compression):
    """Return the bytes of a file of so many records of 300 bytes."""
    with tf.io.TFRecordWriter(path, compression) as writer:
        for _ in range(count):
            writer.write(os.urandom(300))
    with open(path, "rb") as file:
        return file.read()


def count(data, compression):
    """Return how many records a file of these bytes yields, or the name of the error."""
    with open("read", "wb") as file:
        file.write(data)
    try:
        return sum(1 for _ in tf.data.TFRecordDataset("read", compression))
    except tf.errors.DataLossError as error:
        return type(error).__name__


found = [count(2 * written("shard", 1000, kind), kind) for kind in ("GZIP", "ZLIB")]
plain = written("plain", 2, "")  # each record takes 12 + 300 + 4 bytes
found += [count(plain[: 316 + 5], ""), count(plain[: 316 + 100], "")]
print("GZIP: {}; ZLIB: {}; plain, cut in a length: {}; plain, cut in a record: {}".format(*found))
assert found == [2000, 1000, 1, "DataLossError"], "the behaviour has changed"
PROGRAM
