"""Decisions of a chief: placement of variables, scheduling of workers, and which gradients are applied.

Pure functions and threads; no TensorFlow. `tfdist.training.parameter_servers.remote` has what is computed.
"""
