"""Collective backends, each of which carries tensors between processes in its own way."""
