"""Features of models: layers, table lookups, losses and metrics."""
