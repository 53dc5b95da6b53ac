"""Layers and losses that compute with parts of weights, and with activations in parts."""
