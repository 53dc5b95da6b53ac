"""Steps of `fit` with one replica, beside plain Keras."""
