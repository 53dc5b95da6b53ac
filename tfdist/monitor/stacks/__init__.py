"""Stacks of a job's processes: Python frames, and what they wait for."""
