"""Collectives of replicas that share a process with others: in its memory, and over several such processes."""
