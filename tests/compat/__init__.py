"""tfdist beside another TensorFlow and Keras, in an environment of their own: `python -m tests.compat`."""
