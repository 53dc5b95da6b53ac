"""Rendezvous of a job's members, before a collective backend starts."""
