#!/usr/bin/env bash
# Finding: one integer beyond 64 bits in a file makes pyarrow.json round all the others of its column.
#
# Versions: pyarrow 26.0.1, Python 3.11.
# Behaviour: the type of a column is inferred from its block. An unsigned 64-bit number, such as a hash that serves as an
# id, does not fit int64, so the column becomes double, and every id above 2**53 is rounded. Two ids can become one. With
# an explicit schema of uint64 all are exact. Python's json module keeps integers of any size.
# Output seen: inferred: double, 2 distinct of 3; uint64: 3 distinct of 3
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
import pyarrow.json

lines = b"".join(b'{"id": %d}\n' % one for one in (9007199254740992, 9007199254740993, 12345678901234567890))
inferred = pa.json.read_json(io.BytesIO(lines)).column("id")
options = pa.json.ParseOptions(explicit_schema=pa.schema({"id": pa.uint64()}))
exact = pa.json.read_json(io.BytesIO(lines), parse_options=options).column("id")
found = [str(inferred.type), len(set(inferred.to_pylist())), len(set(exact.to_pylist()))]
print("inferred: {}, {} distinct of 3; uint64: {} distinct of 3".format(*found))
assert found == ["double", 2, 3], "the behaviour has changed"
PROGRAM
