"""Matrix factorization, compared with `implicit`."""
