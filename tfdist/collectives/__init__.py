"""Backends that reduce tensors over processes, and the means by which processes find each other."""
