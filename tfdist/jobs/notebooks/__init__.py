"""A function of a notebook as a job."""
