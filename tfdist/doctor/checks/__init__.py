"""Checks of a machine: each file observes one thing, and judges it in a pure function."""
