"""What is asked of a model, and what is told and kept meanwhile."""
