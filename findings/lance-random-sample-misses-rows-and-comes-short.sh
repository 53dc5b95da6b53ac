#!/usr/bin/env bash
# Finding: Lance's random sample comes short, and never reaches whole classes of rows.
#
# Versions: pylance 14.0.2, PyArrow 26.0.1, NumPy 2.3.5, Python 3.11.
# Behaviour: `lance.sampler.maybe_sample`, which the dataset for PyTorch uses for `samples=n`, divides a table into 2048
# chunks and takes a run of rows from each. Divisions are rounded down, and the last place in a chunk is never drawn. So
# fewer rows come back than were asked for, or the end of the table has none, and of a chunk of four, row 3 is never
# seen. 9000 of 10,000 are always the first 9000. Where examples alternate (views of one object, languages, labels) or
# are sorted by time, the sample has another distribution than the table. `LanceDataset.sample` draws uniformly.
# Output seen: 10,000 rows, 3 draws each: asked for 4095, got 2500, of which 0 are rows 3 of 4; asked for 4096, none
# after row 8190; asked for 9000, the first 9000 in 3 draws; LanceDataset.sample(4095): got 4095, of which about 25% are
# rows 3 of 4
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pylance==14.0.2 pyarrow==26.0.1 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import lance
import numpy as np
import pyarrow as pa
from lance.sampler import maybe_sample

ROWS, DRAWS = 10_000, 3
table = lance.write_dataset(pa.table({"row": np.arange(ROWS)}), "table.lance")


def drawn(count):
    """Return the rows of one random sample."""
    return np.concatenate([batch["row"].to_numpy() for batch in maybe_sample(table, count, "row")])


np.random.seed(0)
short, whole, most = ([drawn(count) for _ in range(DRAWS)] for count in (4095, 4096, 9000))
sizes, last = {len(rows) for rows in short}, max(rows.max() for rows in whole)
third = sum(int((rows % 4 == 3).sum()) for rows in short)
firsts = sum(np.array_equal(np.sort(rows), np.arange(9000)) for rows in most)
fair = table.sample(4095)["row"].to_numpy()
print(f"{ROWS:,} rows, {DRAWS} draws each: asked for 4095, got {', '.join(map(str, sizes))}, ", end="")
print(f"of which {third} are rows 3 of 4; asked for 4096, none after row {last}; ", end="")
print(f"asked for 9000, the first 9000 in {firsts} draws; LanceDataset.sample(4095): got {len(fair)}, ", end="")
print(f"of which {(fair % 4 == 3).mean():.1%} are rows 3 of 4")
assert sizes == {2500} and third == 0 and firsts == DRAWS, "the behaviour has changed"
assert {len(rows) for rows in whole} == {4096} and last < 8192, "the behaviour has changed"
assert len(fair) == 4095 and abs((fair % 4 == 3).mean() - 0.25) < 0.04 and fair.max() > 9900
PROGRAM
