"""Weights in parts: which axis of a mesh each dim is cut along, and what travels for it."""
