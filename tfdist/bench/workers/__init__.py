"""The worker processes that benchmarks measure in turns, and their common parts."""
