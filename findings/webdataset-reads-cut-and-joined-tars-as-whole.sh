#!/usr/bin/env bash
# Finding: a tar that was cut between members, and tars that were joined by cat, read as shorter ones without an error.
#
# Versions: webdataset 1.0.2, Python 3.11 (whose tarfile does the same).
# Behaviour: a tar ends with two blocks of zeros. A file that ends where a member does, because its disk was full or its
# writer still works, is accepted without them. Behind the first end nothing is read, so of joined tars the first alone
# is. A job trains on fewer samples than there are, and nothing says so.
# Output seen: whole 10, cut 7, joined 10 of 20
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 'numpy<3'
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import io
import tarfile
from pathlib import Path

import webdataset


def write(name, numbers):
    with tarfile.open(name, "w") as tar:
        for number in numbers:
            member = tarfile.TarInfo(f"{number:03d}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    return Path(name).read_bytes()


def read(name):
    return sum(1 for _ in webdataset.WebDataset(name, shardshuffle=False))


first, second = write("whole.tar", range(10)), write("other.tar", range(10, 20))
Path("cut.tar").write_bytes(first[: 7 * 1024])  # a member takes two blocks of 512 bytes
Path("joined.tar").write_bytes(first + second)
found = [read(name) for name in ("whole.tar", "cut.tar", "joined.tar")]
print(f"whole {found[0]}, cut {found[1]}, joined {found[2]} of 20")
assert found == [10, 7, 10], "the behaviour has changed"
PROGRAM
