"""Steps on parameter servers: what the chief does, what a worker computes, and what travels between them."""
