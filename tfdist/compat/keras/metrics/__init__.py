"""Metrics: the weights of what they are given, and their resets."""
