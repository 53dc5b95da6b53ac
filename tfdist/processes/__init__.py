"""Local processes for all packages: pools, forked workers, guarded folders and memory, and exit statuses."""
