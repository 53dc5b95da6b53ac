"""Placements, which run a job's processes: the interface, and this host."""
