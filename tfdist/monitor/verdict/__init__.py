"""From the rows of all workers to what a job is bound by, as pure functions of numbers."""
