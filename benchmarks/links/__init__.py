"""Slow links: training that meets in every step, beside training that meets seldom."""
