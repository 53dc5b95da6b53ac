"""Federated algorithms as values: the training of a client, and the server's use of the aggregate; only NumPy."""
