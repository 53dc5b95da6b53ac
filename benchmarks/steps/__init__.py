"""Steps of `fit` with one replica, compared with plain Keras."""
