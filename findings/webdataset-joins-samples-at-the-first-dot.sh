#!/usr/bin/env bash
# Finding: WebDataset joins two samples whose names differ after a dot.
#
# Versions: webdataset 1.0.2, Python 3.11.
# Behaviour: a sample's key ends at the first dot of a file's name. Files named by a time or a version, such as
# `cam/12.5.jpg` and `cam/12.7.jpg`, become one sample with the fields `5.jpg` and `7.jpg`. Nothing is reported, and a
# decoder by extension still finds a picture under the last part. Files without a dot are left out as silently.
# Output seen: 1 sample: cam/12 with 5.cls, 5.jpg, 7.cls, 7.jpg
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import io
import tarfile

import webdataset

with tarfile.open("shard.tar", "w") as shard:
    for name in ("cam/12.5.jpg", "cam/12.5.cls", "cam/12.7.jpg", "cam/12.7.cls", "cam/notes"):
        member = tarfile.TarInfo(name)
        member.size = 1
        shard.addfile(member, io.BytesIO(b"1"))
samples = list(webdataset.WebDataset("shard.tar", shardshuffle=False))
fields = [sorted(name for name in one if not name.startswith("__")) for one in samples]
print(f"{len(samples)} sample: {samples[0]['__key__']} with {', '.join(fields[0])}")
assert fields == [["5.cls", "5.jpg", "7.cls", "7.jpg"]], "the behaviour has changed"
PROGRAM
