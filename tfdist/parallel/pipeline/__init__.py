"""Pipelines: a model cut into parts, and the step of a stage that runs a schedule."""
