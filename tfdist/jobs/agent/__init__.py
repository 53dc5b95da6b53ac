"""The agent of a job: it starts, looks, acts and tells."""
