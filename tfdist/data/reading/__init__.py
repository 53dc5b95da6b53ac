"""From a directory of examples to single examples and to a `tf.data.Dataset`."""
