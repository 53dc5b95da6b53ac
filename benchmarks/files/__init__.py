"""TFRecord files: writing, reading and resuming."""
