"""Metrics and checkpoints that a function job reports while it runs, in its own folder."""
