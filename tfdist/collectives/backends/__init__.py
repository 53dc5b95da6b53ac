"""Collective backends: what carries tensors between processes, and which of them a strategy takes."""
