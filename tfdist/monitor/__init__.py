"""Observation of a worker's steps: a clock, its observers, and the table that the agent reads. No TensorFlow."""
