"""Metrics and checkpoints that a function job reports while it runs, in a folder of its own."""
