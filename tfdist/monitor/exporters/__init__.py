"""Export a job's figures to TensorBoard, Prometheus and MLflow, from outside the job."""
