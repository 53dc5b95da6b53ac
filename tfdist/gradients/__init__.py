"""From the gradients of each replica to one update: how they are reduced, and which part of it a worker makes."""
