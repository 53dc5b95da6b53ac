"""Federated algorithms as values: how a client trains, and what the server makes of the aggregate; NumPy alone."""
