"""TFRecord files as sources, and what their examples consist of."""
