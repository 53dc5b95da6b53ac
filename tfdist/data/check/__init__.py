"""Whether a directory is what its manifest says, and how a damaged one is repaired."""
