"""What of Horovod is private."""
