"""Federated messages over TLS: keys, frames, and a server to which clients connect; knows nothing of rounds."""
