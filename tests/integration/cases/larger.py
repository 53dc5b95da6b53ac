"""Train a model of two layers under the strategy that the environment names, and print its losses."""

import keras
import numpy as np

import tfdist

keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
with tfdist.strategies.from_environment().scope():
    layers = [keras.layers.Dense(16, "relu", name="wide"), keras.layers.Dense(1, name="narrow")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", loss="mse")
losses = model.fit(x, x.sum(axis=1), batch_size=16, epochs=2, verbose=0).history["loss"]
print("losses", *losses)
