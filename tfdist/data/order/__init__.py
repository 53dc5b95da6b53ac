"""The examples of each batch, as pure functions of seed, epoch and position."""
