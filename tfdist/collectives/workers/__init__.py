"""The worker processes of one strategy: how they agree, and how long they wait for each other."""
