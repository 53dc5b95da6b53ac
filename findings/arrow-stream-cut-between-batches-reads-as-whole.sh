#!/usr/bin/env bash
# Finding: an Arrow stream that lost its last batches reads as a shorter one, without an error.
#
# Versions: pyarrow 26.0.1, Python 3.11.
# Behaviour: a stream ends with a marker of eight bytes, and its reader takes the end of the bytes for the marker as well.
# A file in the stream format (`arrow` files of Hugging Face datasets are such) that was cut between two batches has
# fewer rows and raises nothing; a cut inside a message raises. The file format, with a footer, refuses both.
# Output seen: whole: 12 rows; cut between batches: 6 rows; cut inside: ArrowInvalid; file format: ArrowInvalid
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import io

import pyarrow as pa

batch = pa.record_batch({"x": [1, 2, 3]})


def written(make):
    """Return the bytes of four batches, and where the second of them ends."""
    sink, ends = io.BytesIO(), []
    with make(sink, batch.schema) as writer:
        for _ in range(4):
            writer.write_batch(batch)
            ends.append(sink.tell())
    return sink.getvalue(), ends[1]


def rows(read, data):
    """Return the number of rows, or the name of the error."""
    try:
        return read(data).read_all().num_rows
    except pa.ArrowInvalid as error:
        return type(error).__name__


stream, end = written(pa.ipc.new_stream)
file, file_end = written(pa.ipc.new_file)
found = [rows(pa.ipc.open_stream, part) for part in (stream, stream[:end], stream[: end + 20])]
found.append(rows(pa.ipc.open_file, file[:file_end]))
print("whole: {} rows; cut between batches: {} rows; cut inside: {}; file format: {}".format(*found))
assert found == [12, 6, "ArrowInvalid", "ArrowInvalid"], "the behaviour has changed"
PROGRAM
