"""The bottleneck of a job from the rows of all workers, as pure functions of numbers."""
