"""Plans and predictions, as pure functions of what was measured; loads no TensorFlow."""
