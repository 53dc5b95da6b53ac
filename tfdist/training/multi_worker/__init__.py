"""Several worker processes of one strategy: how they agree, wait for each other, and save."""
