"""Federated messages over TLS: keys, frames, and a server to which clients connect; independent of rounds."""
