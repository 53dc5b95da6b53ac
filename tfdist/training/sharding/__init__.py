"""Sharded data parallelism: each worker updates a part of the weights, and has the optimizer's slots of that part alone."""
