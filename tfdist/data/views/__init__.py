"""Parts, mixtures and packings of examples, which are read as a directory is."""
