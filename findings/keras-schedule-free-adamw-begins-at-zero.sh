#!/usr/bin/env bash
# Finding: in `fit`, ScheduleFreeAdamW begins at zero, and not at the weights of the model.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: the optimizer keeps a second copy of the weights (z), which its `build` sets to the weights. `fit` builds
# the optimizer while it traces the model without running it, and an assignment in there is lost. So z is zero, and
# every update pulls the weights towards zero. After `optimizer.build(model.trainable_variables)`, z is right.
# Output seen: sum of |weights| 30.00; of |z| in fit 0.00, built before 30.00
# 200 steps without a gradient: weights in fit 0.00, built before 30.00
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" - <<'PROGRAM'
import keras
import numpy as np

x = np.zeros([400, 8], np.float32)  # so gradients of the kernel are zero, and it has no reason to change
y = np.zeros([400, 16], np.float32)


def trained(steps, built_before):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(16, use_bias=False)])
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.01), "mse")
    before = float(np.abs(model.get_weights()[0]).sum())
    if built_before:
        model.optimizer.build(model.trainable_variables)
    model.fit(x[: 2 * steps], y[: 2 * steps], batch_size=2, verbose=0)
    (z,) = [one for one in model.optimizer.variables if one.path.endswith("_momentum")]
    return before, float(np.abs(z.numpy()).sum()), float(np.abs(model.get_weights()[0]).sum())


weights, lost, _ = trained(1, built_before=False)
_, right, _ = trained(1, built_before=True)
(_, _, shrunk), (_, _, kept) = (trained(200, built_before=one) for one in (False, True))
print(f"sum of |weights| {weights:.2f}; of |z| in fit {lost:.2f}, built before {right:.2f}")
print(f"200 steps without a gradient: weights in fit {shrunk:.2f}, built before {kept:.2f}")
assert weights > 10 and lost < 1e-3 and abs(right - weights) < 0.01 * weights, "the behaviour has changed"
assert shrunk < 0.05 * weights and abs(kept - weights) < 0.05 * weights, "the behaviour has changed"
PROGRAM
