"""Which examples a batch consists of: pure functions of seed, epoch and position."""
