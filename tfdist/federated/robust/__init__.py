"""Rules that combine the updates of clients if some clients may lie."""
