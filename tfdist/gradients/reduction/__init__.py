"""The reduction of gradients: sums over replicas, and the chain of reducers."""
