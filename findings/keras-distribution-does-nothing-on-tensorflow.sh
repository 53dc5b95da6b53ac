#!/usr/bin/env bash
# Finding: keras.distribution is accepted on the TensorFlow backend, and then has no effect.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: set_distribution takes a DataParallel, also one over GPUs that do not exist. Then `fit` trains on one device,
# with the same bits as without it, and every variable is on CPU:0. No warning says so. The JAX backend divides the work.
# Output seen: devices of the variables: CPU:0; weights equal to those without a distribution: True
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def trained(distribution):
    """Return the weights and the devices of a small model after a training."""
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    rows = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    model.fit(rows, rows[:, :1], batch_size=8, verbose=0, shuffle=False)
    return model.get_weights(), {one.value.device.rpartition("device:")[2] for one in model.variables}


plain, _ = trained(None)
found, devices = trained(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"], auto_shard_dataset=False))
absent, _ = trained(keras.distribution.DataParallel(devices=["gpu:0", "gpu:7"], auto_shard_dataset=False))
equal = all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip(plain, found, absent, strict=True))
print(f"devices of the variables: {', '.join(sorted(devices))}; weights equal to those without a distribution: {equal}")
assert devices == {"CPU:0"} and equal, "the behaviour has changed"
PROGRAM
