"""A job as values: the request, the roles, and the resulting processes."""
