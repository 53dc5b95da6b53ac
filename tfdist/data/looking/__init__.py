"""A look at examples: single ones, and statistics of all."""
