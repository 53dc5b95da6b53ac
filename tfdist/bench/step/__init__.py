"""Steps of training, by `fit` and in hand-written loops: every strategy, and its peers."""
