#!/usr/bin/env bash
# Finding: filters of Parquet files lose the rows of NaN, and DuckDB finds no NaN in a file of pyarrow's at all.
#
# Versions: pyarrow 26.0.1, DuckDB 2.0.1, Python 3.11.
# Behaviour: a row group's statistics are its smallest and its largest number, and NaN is neither. Both readers take
# them as bounds of all rows. A row group of 3, NaN, 3 is "3 throughout", so `x != 3` skips it, though the same filter
# on the table in memory returns the row of NaN. DuckDB's isnan(x) finds no row. Where pyarrow only counts rows, it
# counts NaN as if it were within the bounds. Which rows are lost depends on how they were grouped. Files that DuckDB
# writes have no bounds where there is NaN.
# Output seen: rows != 3: memory 4, file 3; pyarrow counts 3 above 5, reads 2; isnan: pyarrow's file 0, DuckDB's own 2
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

NAN = float("nan")
table = pa.table({"x": [3.0, NAN, 3.0, 7.0, 8.0, NAN]})
pq.write_table(table, "rows.parquet", row_group_size=3)
duckdb.sql("copy (from 'rows.parquet') to 'own.parquet'")
file = pa.dataset.dataset("rows.parquet")
unlike, above = pc.field("x") != 3, pc.field("x") > 5
memory, read = table.filter(unlike).num_rows, file.to_table(filter=unlike).num_rows
counted, rows = file.count_rows(filter=above), file.to_table(filter=above).num_rows
theirs, own = (len(duckdb.sql(f"from '{name}.parquet' where isnan(x)").fetchall()) for name in ("rows", "own"))
print(f"rows != 3: memory {memory}, file {read}; pyarrow counts {counted} above 5, reads {rows}; ", end="")
print(f"isnan: pyarrow's file {theirs}, DuckDB's own {own}")
assert (memory, read, counted, rows, theirs, own) == (4, 3, 3, 2, 0, 2), "the behaviour has changed"
PROGRAM
