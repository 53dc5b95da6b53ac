"""Benchmarks beside the peers: every figure a ratio of runs that took turns, with quartiles."""
