"""Synchronization after an update: workers meet in every step, or seldom, and mix the weights that they then have."""
