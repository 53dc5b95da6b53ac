"""Sharded data parallelism: each worker updates a part of the weights, and has only the slots of that part."""
