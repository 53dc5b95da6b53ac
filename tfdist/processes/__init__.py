"""Local processes, for any room: pools, forked workers, guarded folders and memory, and how a process ended."""
