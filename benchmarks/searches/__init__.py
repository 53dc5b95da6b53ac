"""Searches of hyper-parameters, compared with their peers."""
