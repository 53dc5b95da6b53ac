"""What acts for the agent on a host has of its workers: their status tables, and what they write."""
