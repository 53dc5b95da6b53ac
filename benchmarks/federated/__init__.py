"""Federated training, compared with Flower."""
