"""Stacks of a job's processes: Python frames, and descriptions of waits."""
