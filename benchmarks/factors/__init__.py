"""Matrix factorisation, compared with `implicit`."""
