"""A chief's decisions about workers and parameter servers: where variables lie, who computes what, what is applied.

Pure functions and threads; no TensorFlow. `tfdist.training.remote` has what is computed.
"""
