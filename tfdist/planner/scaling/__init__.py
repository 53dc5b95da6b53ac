"""Predictions of the steps, hours and prices of a job by its number of workers; pure, without TensorFlow."""
