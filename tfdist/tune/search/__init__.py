"""Hyper-parameter search: pure schedulers that decide, and a driver that runs trials as jobs."""
