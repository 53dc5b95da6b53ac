"""Hands what is known of a job to others, such as TensorBoard, Prometheus and MLflow, beside the job and never in it."""
