"""Private names of Horovod."""
