"""What a model consists of: layers, lookups in tables, losses and metrics."""
