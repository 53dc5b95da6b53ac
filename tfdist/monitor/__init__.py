"""What happens inside the steps of a worker, and who is told: one clock, its observers, the table the agent reads.

Loads no TensorFlow.
"""
