"""Engines that reduce tensors over processes, and what they need to find each other."""
