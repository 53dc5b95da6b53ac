"""A job as values: the request, its roles, and the processes that follow from them."""
