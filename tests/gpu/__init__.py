"""Checks of tfdist on GPUs, which run on processors too."""
