#!/usr/bin/env bash
# Finding: a model that Keras exported to ONNX counts each word once, and computes NaN behind its own guards.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, tf2onnx 1.17.0, onnx 1.23.2, onnxruntime 1.32.0, Python 3.11.
# Behaviour: model.export(format="onnx") uses tf2onnx, which converts operations that scatter with repeated indices to
# one that keeps the last value instead of the sum, so histograms and bags of words become sets. It converts `where` to
# products with 0 and 1, so what a guard hides comes back: 0 times infinity is NaN. one_hot of -1 is the last class
# instead of none, so padding has a label, and integers are divided towards zero. Export and session raise nothing.
# Output seen: counts of 3, 1, 3, 3, 1, 0: Keras [1.0, 2.0, 0.0, 3.0], ONNX [1.0, 1.0, 0.0, 1.0]
# guarded log of 0, -1, 1: Keras [0.0, 0.0, 0.0], ONNX [nan, nan, 0.0]
# one_hot of -1: Keras [0.0, 0.0, 0.0], ONNX [0.0, 0.0, 1.0]
# -5 mod 24: Keras [19.0], ONNX [-5.0]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5 tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np
import onnxruntime
from keras import ops


class Computed(keras.layers.Layer):
    """A layer that computes a function of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def both(function, values):
    """Return what a model computes from values in Keras, and in ONNX after its export."""
    inputs = keras.Input(batch_shape=values.shape, dtype=values.dtype.name)
    model = keras.Model(inputs, Computed(function)(inputs))
    computed = model(values)
    model.export("model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    (exported,) = session.run(None, {session.get_inputs()[0].name: values})
    return [np.asarray(one).astype("float64").ravel().tolist() for one in (computed, exported)]


words = np.array([3, 1, 3, 3, 1, 0], "int32")
counts = both(lambda words: ops.scatter(words[:, None], ops.ones_like(words, "float32"), (4,)), words)
print("counts of 3, 1, 3, 3, 1, 0: Keras {}, ONNX {}".format(*counts))
logs = both(lambda x: ops.where(x > 0, ops.log(x), 0.0), np.array([0, -1, 1], "float32"))
print("guarded log of 0, -1, 1: Keras {}, ONNX {}".format(*logs))
hot = both(lambda labels: ops.one_hot(labels, 3), np.array([-1], "int32"))
print("one_hot of -1: Keras {}, ONNX {}".format(*hot))
hours = both(lambda hours: ops.mod(hours, 24), np.array([-5], "int32"))
print("-5 mod 24: Keras {}, ONNX {}".format(*hours))
assert counts == [[1, 2, 0, 3], [1, 1, 0, 1]], "the behaviour has changed"
assert logs[0] == [0, 0, 0] and np.isnan(logs[1][:2]).all() and logs[1][2] == 0, "the behaviour has changed"
assert hot == [[0, 0, 0], [0, 0, 1]] and hours == [[19], [-5]], "the behaviour has changed"
PROGRAM
