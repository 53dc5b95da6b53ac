"""Where processes of a job run: the interface, and this host."""
