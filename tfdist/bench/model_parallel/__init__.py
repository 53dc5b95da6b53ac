"""Model parallelism over two processes beside one, and beside TensorFlow's DTensor."""
