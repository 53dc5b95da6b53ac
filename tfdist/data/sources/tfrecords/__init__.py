"""TFRecord files as sources, and the schema of their examples."""
