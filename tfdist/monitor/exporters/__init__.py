"""The export of a job's figures to TensorBoard, Prometheus and MLflow, from outside the job."""
