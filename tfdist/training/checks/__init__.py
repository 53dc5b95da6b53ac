"""Checks before a step is trusted: the reduction of its results, and untested versions."""
