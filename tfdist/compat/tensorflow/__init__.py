"""What of TensorFlow is private: strategies, devices, variables, sparse gradients, `tf.data`."""
