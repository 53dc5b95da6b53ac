"""Parameter servers: a slow worker, and a large table in parts."""
