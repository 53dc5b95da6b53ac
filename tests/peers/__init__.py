"""The tests of Keras and TensorFlow themselves, run as they are in a scope of tfdist: `python -m tests.peers`."""
