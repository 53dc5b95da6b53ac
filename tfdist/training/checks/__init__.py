"""Checks before a step is trusted: what it reduces to, and untested versions."""
