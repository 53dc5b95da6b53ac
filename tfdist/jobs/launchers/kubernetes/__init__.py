"""A job on Kubernetes: what is submitted, as pure functions; a submission that is followed to its end; and its pods."""
