#!/usr/bin/env bash
# Finding: DuckDB's TensorFlow tensors have 0 and False where the table has NULL.
#
# Versions: DuckDB 2.0.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a relation's `fetchnumpy` returns masked arrays, whose mask marks NULL. Its `tf` makes tensors of the same
# arrays, and TensorFlow takes the values without the mask: NULL becomes 0, 0.0 or False. A missing label becomes a
# negative one, and a mean counts missing values as zeros. Unlike NaN, these zeros cannot be found later. `df` keeps
# NULL as a missing value. Nothing is raised.
# Output seen: NULL as int64 0, double 0.0, boolean False; mean of 2, 4, NULL: 2.0 instead of 3.0
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 duckdb==2.0.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import duckdb
import numpy as np
import tensorflow as tf

duckdb.sql("create table t (i bigint, d double, b boolean)")
duckdb.sql("insert into t values (1, 2, true), (2, 4, true), (NULL, NULL, NULL)")
table = duckdb.sql("from t")
tensors = table.tf()
integer, double, boolean = (tensors[name].numpy()[2].item() for name in ("i", "d", "b"))
mean, right = float(tf.reduce_mean(tensors["d"])), duckdb.sql("select avg(d) from t").fetchall()[0][0]
print(f"NULL as int64 {integer}, double {double}, boolean {boolean}; mean of 2, 4, NULL: {mean} instead of {right}")
masks = [np.ma.getmaskarray(column).tolist() for column in table.fetchnumpy().values()]
assert masks == [[False, False, True]] * 3 and right == 3.0
assert [repr(value) for value in (integer, double, boolean)] == ["0", "0.0", "False"], "the behaviour has changed"
assert mean == 2.0, "the behaviour has changed"
PROGRAM
