"""Matrix factorisation beside `implicit`."""
