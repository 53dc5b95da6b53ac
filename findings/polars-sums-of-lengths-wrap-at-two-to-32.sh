#!/usr/bin/env bash
# Finding: Polars sums the lengths of a large text column modulo 2**32.
#
# Versions: Polars 2.1.0, Python 3.11.
# Behaviour: lengths of texts, bytes and lists are uint32, and so is their sum, because Polars widens only sums of 8 and
# 16 bits. A corpus of 5 billion characters appears to have 705 million. Steps, shares of a mixture and prices per token
# are then computed from a seventh. `group_by` behaves alike, and sums of int32 become negative. `mean` is right, so the
# mean times the count is not the sum. NumPy, DuckDB and pyarrow widen all of these. Nothing is raised.
# Output seen: 5,000 texts of 1,000,000 characters: sum 705,032,704, by group 705,032,704, mean times count 5,000,000,000
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import polars as pl

count, length = 5_000, 1_000_000
pl.DataFrame({"text": ["x" * length]}).write_parquet("one.parquet")
texts = pl.concat([pl.scan_parquet("one.parquet")] * count)  # as a corpus of many files is scanned
lengths = texts.select(pl.col("text").str.len_chars()).collect(engine="streaming")["text"]
whole, mean = int(lengths.sum()), lengths.mean() * count
groups = lengths.to_frame().group_by(pl.lit(1).alias("all")).agg(pl.col("text").sum())
grouped = int(groups["text"][0])
print(f"{count:,} texts of {length:,} characters: sum {whole:,}, by group {grouped:,}, mean times count {mean:,.0f}")
assert mean == count * length == int(lengths.cast(pl.Int64).sum()), "the data are others"
assert whole == grouped == count * length % 2**32, "the behaviour has changed"
assert int(pl.Series([2**30] * 3, dtype=pl.Int32).sum()) == -(2**30), "the behaviour has changed"
assert int(pl.Series([2**15] * 3, dtype=pl.UInt16).sum()) == 3 * 2**15, "the behaviour has changed"
PROGRAM
