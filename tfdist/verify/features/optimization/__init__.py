"""Features between a gradient and a weight."""
