"""Parameter servers: workers of which one is slow, and a large table in parts."""
