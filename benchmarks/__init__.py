"""Benchmarks of tfdist itself, beside its peers: `python -m benchmarks --help`."""
