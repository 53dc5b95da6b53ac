"""Steps of training: Keras' own and the user's."""
