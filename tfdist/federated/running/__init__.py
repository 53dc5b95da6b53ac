"""Federated runs over real processes: a server that drives the rounds, and clients that train."""
