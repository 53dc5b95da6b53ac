"""Inspection of examples: single ones, and statistics of all."""
