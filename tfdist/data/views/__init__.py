"""Parts, mixtures and packings of examples, which are read like a directory."""
