"""Files of examples: writing, reading, mixing and resuming."""
