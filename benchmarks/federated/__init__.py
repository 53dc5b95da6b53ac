"""Federated training beside Flower."""
