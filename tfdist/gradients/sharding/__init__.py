"""Sharded data parallelism: each worker updates a part of the weights, and has the slots of that part alone."""
