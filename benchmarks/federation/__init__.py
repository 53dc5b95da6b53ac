"""Federated training: rules against clients that lie."""
