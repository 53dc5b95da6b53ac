"""Programs that run inside a job's processes, and what a job keeps on its host."""
