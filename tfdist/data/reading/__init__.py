"""Readers of a directory of examples: single examples, and a `tf.data.Dataset`."""
