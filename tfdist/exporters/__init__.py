"""Hands what is known of a job to TensorBoard, Prometheus and MLflow, beside the job and never in it."""
