"""What a job of a function reports while it runs, in a folder of its own: metrics and checkpoints."""
