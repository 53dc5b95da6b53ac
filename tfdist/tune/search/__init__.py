"""Hyper-parameter search: pure schedulers that decide, and a loop that runs trials as jobs."""
