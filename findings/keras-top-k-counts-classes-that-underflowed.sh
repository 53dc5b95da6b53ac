#!/usr/bin/env bash
# Finding: the top-5 accuracy of a model that is always wrong is 100 % if its softmax is confident enough.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a class that is as probable as the k-th one counts as one of the k, however many classes tie with it. A
# softmax in float16 gives 0 to every logit at least 17 below the largest, and a softmax in float32 to every logit that
# is 104 below. So after a confident first class all others tie at 0, and the label is among the first five at any rank.
# The more confident the model becomes, the better the metric looks. A model whose outputs are all equal also has a
# top-1 accuracy of 100 %. The same metric of the logits has no ties. Nothing is raised.
# Output seen: 1000 classes, labels at random places: top-5 of logits 0.003, of float32 0.003, of float16 1.000,
# of float32 that is surer 1.000; all alike: top-1 1.000, sparse_categorical_accuracy 0.000
# The script fails if that changes; last digits may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

rows, classes = 2000, 1000
generator = np.random.default_rng(0)
labels = generator.integers(1, classes, rows)
logits = generator.normal(size=(rows, classes)).astype("float32")
logits[:, 0] = 30  # the model is sure of class 0, which is never right
surer = logits + 90 * np.eye(classes, dtype="float32")[0]


def top(k, scores):
    """Return Keras' top-k accuracy of scores."""
    metric = keras.metrics.SparseTopKCategoricalAccuracy(k=k)
    metric.update_state(labels, scores)
    return float(metric.result())


def softmax(policy, scores):
    """Return the probabilities that a layer gives, as float32 in the end, as Keras' guide has it."""
    return keras.layers.Activation("linear", dtype="float32")(keras.layers.Softmax(dtype=policy)(scores))


right = float(np.mean(np.sum(logits >= logits[np.arange(rows), labels, None], axis=1) <= 5))
found = [top(5, surer), top(5, softmax("float32", logits))]
ties = [top(5, softmax("float16", logits)), top(5, softmax("float32", surer))]
alike = np.zeros((rows, classes), "float32")
first = top(1, alike)
accuracy = keras.metrics.SparseCategoricalAccuracy()
accuracy.update_state(labels, alike)
print("1000 classes, labels at random places: top-5 of logits {:.3f}, of float32 {:.3f}, ".format(*found), end="")
print("of float16 {:.3f}, of float32 that is surer {:.3f};".format(*ties))
print(f"all alike: top-1 {first:.3f}, sparse_categorical_accuracy {float(accuracy.result()):.3f}")
assert np.allclose(found, right) and right < 0.02
assert [*ties, first] == [1.0] * 3 and float(accuracy.result()) < 0.02, "the behaviour has changed"
PROGRAM
