#!/usr/bin/env bash
# Finding: one folder of a Hive partition changes the type of the partition column for all rows.
#
# Versions: pyarrow 26.0.1, Python 3.11.
# Behaviour: partitioning="hive" infers int32 where every folder's value fits, else a string. One folder `month=unknown`,
# or one key of 2147483648, turns the column of every other file into text, and "01" is not 1 any more. A filter or a
# join on the number then fails or finds nothing. An explicit partition schema keeps the type.
# Output seen: month=01, 02: int32; with month=unknown: string; with 2147483648: string; with a schema of int64: int64
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import os

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet


def kind(folder, values, partitioning="hive"):
    """Return the type of `month` over folders of these values."""
    for value in values:
        os.makedirs(f"{folder}/month={value}", exist_ok=True)
        pa.parquet.write_table(pa.table({"x": [1]}), f"{folder}/month={value}/part.parquet")
    return str(pa.dataset.dataset(folder, partitioning=partitioning).schema.field("month").type)


given = pa.dataset.partitioning(pa.schema({"month": pa.int64()}), flavor="hive")
found = [
    kind("months", ("01", "02")),
    kind("months", ("unknown",)),
    kind("keys", ("1", "2147483648")),
    kind("keys", ("1", "2147483648"), given),
]
print("month=01, 02: {}; with month=unknown: {}; with 2147483648: {}; with a schema of int64: {}".format(*found))
assert found == ["int32", "string", "string", "int64"], "the behaviour has changed"
PROGRAM
