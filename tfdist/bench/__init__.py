"""Benchmarks against the peers: each figure is a ratio of alternating runs, with quartiles."""
