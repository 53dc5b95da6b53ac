"""Jobs on Kubernetes: manifests as pure functions, submissions that are followed to their end, and pods."""
