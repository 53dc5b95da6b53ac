"""Strategies over a mesh of processes, and variables of which each process has a part."""
