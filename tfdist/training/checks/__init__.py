"""What is tried before a step is trusted: what it reduces to, and versions that were not tested."""
