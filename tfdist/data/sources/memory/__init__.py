"""Sources in this process: arrays, streams of examples, `tf.data`."""
