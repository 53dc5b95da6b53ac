"""Rules that combine clients' updates and withstand clients that lie."""
