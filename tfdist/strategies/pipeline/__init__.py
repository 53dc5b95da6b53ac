"""A model in stages over processes."""
