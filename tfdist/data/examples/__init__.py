"""Examples by number, in one directory or several, or computed from files of other libraries; no TensorFlow."""
