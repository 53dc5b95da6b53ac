"""What a backup costs training, beside Keras' callback."""
