#!/usr/bin/env bash
# Finding: reading an LMDB file that was cut ends the process by a signal; no exception can be caught.
#
# Versions: lmdb 3.0.0 (LMDB 0.9.36), Python 3.11.
# Behaviour: a file of which half is missing, as a copy that was broken off leaves it, opens without an error, and its
# statistics count all entries. The first access behind its end is one behind the end of a mapped file, and the system
# ends the process by SIGBUS. The log of a job shows no traceback.
# Output seen: entries 200; ended by signal 7
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lmdb==3.0.0
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import os
import subprocess
import sys

import lmdb

with lmdb.open("cut", map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
    for number in range(200):
        transaction.put(b"%03d" % number, os.urandom(20_000))
os.truncate("cut/data.mdb", os.path.getsize("cut/data.mdb") // 2)

reader = """
import lmdb
with lmdb.open("cut", readonly=True, lock=False) as environment, environment.begin() as transaction:
    print("entries", transaction.stat()["entries"], flush=True)
    try:
        print("bytes", sum(sum(value) for _, value in transaction.cursor()))
    except Exception as error:
        print("error", error)
"""
found = subprocess.run([sys.executable, "-c", reader], capture_output=True, text=True)
print(f"{found.stdout.strip()}; ended by signal {-found.returncode}")
assert (found.stdout, found.returncode) == ("entries 200\n", -7), "the behaviour has changed"
PROGRAM
