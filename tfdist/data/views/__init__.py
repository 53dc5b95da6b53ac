"""Parts and mixtures of examples, which are read as a directory is."""
