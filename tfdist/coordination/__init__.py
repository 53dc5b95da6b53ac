"""A chief's decisions about workers and parameter servers: where variables lie, who computes what, what is applied.

Pure functions and threads; no TensorFlow. `tfdist.training.parameter_servers.remote` has what is computed.
"""
