"""Features of the training data: batches, inputs, and differences between workers."""
