"""Rules that combine the updates of clients, some of which may lie."""
