#!/usr/bin/env bash
# Finding: class_encode_column renumbers integer labels: 10 becomes 2, and 2 becomes 4.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1, NumPy 2.3.5, Python 3.11.
# Behaviour: class_encode_column turns a column into classes, as stratified splits need, and sorts the values as texts:
# 0, 1, 10, 11, 2. So labels that already are 0 to 11 are renumbered if there are eleven classes or more. A model that
# was trained on the labels of the files then has the accuracy of guessing. Two splits that are encoded separately
# disagree if one of them lacks a class. The names are right, so int2str returns the original label; nothing is raised.
# Output seen: 0 to 11 become [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]; 2 is 4 of twelve classes, and 2 of the first ten
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 numpy==2.3.5
cd "$folder"
HF_HOME="$folder" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PROGRAM'
import datasets

datasets.disable_progress_bars()


def encoded(classes):
    """Return a column of the integers 0, 1, 2 and so on, as classes."""
    return datasets.Dataset.from_dict({"label": list(range(classes))}).class_encode_column("label")


twelve, ten = encoded(12), encoded(10)
labels = list(twelve["label"])
print(f"0 to 11 become {labels}; 2 is {labels[2]} of twelve classes, and {ten['label'][2]} of the first ten")
names = [str(number) for number in range(12)]
assert labels == [sorted(names).index(name) for name in names], "the behaviour has changed"
assert (labels[10], labels[2], ten["label"][2]) == (2, 4, 2), "the behaviour has changed"
assert twelve.features["label"].int2str(labels[2]) == "2"
PROGRAM
