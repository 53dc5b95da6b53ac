#!/usr/bin/env bash
# Finding: an ArrayRecord file of no records yields a record, and one that is not closed yet yields none.
#
# Versions: array-record 0.8.6, Python 3.11.
# Behaviour: a writer puts the index at the end of the file when it is closed. A reader of 50 MB that were written but
# not closed reports no records and no error, so a job that starts too early sees an empty set of data. A file that was
# closed with no records reports 0, and read([0]) returns one empty record where other positions out of range raise.
# Output seen: unfinished: 0 records; empty: 0 records, read([0]) = [b'']
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check array-record==0.8.6
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import os
import shutil

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

writer = ArrayRecordWriter("growing.array_record")
for _ in range(50_000):
    writer.write(os.urandom(1000))
shutil.copy("growing.array_record", "unfinished.array_record")
writer.close()
assert ArrayRecordReader("growing.array_record").num_records() == 50_000
assert os.path.getsize("unfinished.array_record") > 10_000_000
unfinished = ArrayRecordReader("unfinished.array_record").num_records()

ArrayRecordWriter("empty.array_record").close()
reader = ArrayRecordReader("empty.array_record")
empty, first = reader.num_records(), reader.read([0])
print(f"unfinished: {unfinished} records; empty: {empty} records, read([0]) = {first}")
assert (unfinished, empty, first) == (0, 0, [b""]), "the behaviour has changed"
PROGRAM
