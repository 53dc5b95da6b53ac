"""A job on several hosts: one process on each starts the workers there, and what it sees goes over one connection."""
