"""Cluster descriptions in environment variables: one file per launcher, and the shared readers."""
