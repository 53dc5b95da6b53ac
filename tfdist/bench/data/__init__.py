"""Writing, reading and resuming data, beside TensorFlow's own tools and grain."""
