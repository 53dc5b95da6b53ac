"""Programs that run inside a job's processes, and files that a job keeps on its host."""
