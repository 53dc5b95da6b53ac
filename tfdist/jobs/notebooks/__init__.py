"""Jobs that run a function of a notebook."""
