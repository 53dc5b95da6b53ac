"""The way from each replica's gradients to one update: reduction, sharding, and synchronization between workers."""
