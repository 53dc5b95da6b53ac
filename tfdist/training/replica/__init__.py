"""The step of one replica: its losses, layers, metrics and optimizers."""
