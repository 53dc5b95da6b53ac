"""What a worker of docker/compose.yaml runs in the test: options of the recipe, a small model, one line of JSON.

Each worker begins with other weights, so they agree only if they were handed around.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import tfdist
from tfdist.callbacks import BackupAndRestore

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path, required=True)
output = parser.parse_args().output
strategy = tfdist.strategies.from_environment()
cluster = tfdist.cluster.from_environment()
keras.utils.set_random_seed(cluster.worker_index)
features = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(
    features,
    features.sum(axis=1, keepdims=True),
    batch_size=8,
    epochs=2,
    shuffle=False,
    verbose=0,
    callbacks=[BackupAndRestore(output / "backup", save_freq=2)],
)
said = {
    "address": cluster.addresses[cluster.worker_index],
    "strategy": type(strategy).__name__,
    "replicas": strategy.num_replicas_in_sync,
    "loss": history.history["loss"],
    "weights": [weight.numpy().tolist() for weight in model.trainable_variables],
}
print(json.dumps(said), flush=True)
