"""Strategies over a mesh of processes, and variables that are divided between processes."""
