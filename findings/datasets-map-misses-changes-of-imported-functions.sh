#!/usr/bin/env bash
# Finding: Dataset.map of Hugging Face returns the old result after an imported function has changed.
#
# Versions: datasets 5.2.0, dill 0.4.1, NumPy 2.3.5, Python 3.11.
# Behaviour: results are stored under a hash of the function, so that another function is computed anew. A function of
# the script itself is hashed by its code. One that is imported from a module is hashed by its name, also where a
# function of the script calls it. So someone who keeps the preprocessing in a module, and fixes it there, continues
# training with the data from before, in every later run. Nothing says so.
# Output seen: + 1 became + 1000: in the script [1000], imported [1], called by a function of the script [1]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 dill==0.4.1 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import os
import pathlib
import subprocess
import sys

MAIN = """
import datasets
from preparation import imported
datasets.disable_progress_bars()
def own(row):
    return {{"y": row["x"] + {number}}}
def calls(row):
    return imported(row)
rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train")
print(*[rows.map(function)["y"][:] for function in (own, imported, calls)])
"""


def run(number):
    """Run a script, and a module that it imports, which both add this number to 0."""
    pathlib.Path("preparation.py").write_text(f"def imported(row):\n    return {{'y': row['x'] + {number}}}\n")
    pathlib.Path("main.py").write_text(MAIN.format(number=number))
    folder = {"HF_HOME": os.getcwd(), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.check_output([sys.executable, "main.py"], env=os.environ | folder, text=True).split()


pathlib.Path("rows.jsonl").write_text('{"x": 0}\n')
first, second = run(1), run(1000)
print("+ 1 became + 1000: in the script {}, ".format(second[0]), end="")
print("imported {}, called by a function of the script {}".format(*second[1:]))
assert (first, second) == (["[1]"] * 3, ["[1000]", "[1]", "[1]"]), "the behaviour has changed"
PROGRAM
