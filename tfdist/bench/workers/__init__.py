"""The worker processes that benchmarks measure, in turns, and what they have in common."""
