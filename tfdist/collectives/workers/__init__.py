"""The worker processes of one strategy: their agreement, and their deadlines for each other."""
