"""Slow links: training whose workers meet in every step, and training whose workers meet seldom."""
