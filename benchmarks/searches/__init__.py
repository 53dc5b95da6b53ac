"""Searches of hyper-parameters beside their peers."""
