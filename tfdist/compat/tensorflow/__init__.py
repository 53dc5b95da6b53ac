"""Private names of TensorFlow: strategies, devices, variables, sparse gradients, `tf.data`."""
