"""Steps on parameter servers: the chief's part, the workers' computation, and the data between them."""
