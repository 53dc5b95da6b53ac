"""Observe the steps of a worker: one clock, its observers, and the table that the agent reads. Loads no TensorFlow."""
