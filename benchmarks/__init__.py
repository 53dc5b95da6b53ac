"""Benchmarks of tfdist itself, compared with its peers: `python -m benchmarks --help`."""
