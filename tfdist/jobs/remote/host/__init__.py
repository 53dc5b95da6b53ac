"""The host agent's access to its workers: status tables and output."""
