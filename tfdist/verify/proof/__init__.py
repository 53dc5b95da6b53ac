"""The proof on a user's own script: its first steps on one device and under a strategy, compared."""
