"""What a model is trained on: batches, inputs, and what differs between workers."""
