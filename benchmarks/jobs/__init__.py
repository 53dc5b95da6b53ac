"""Benchmarks of the work of a job beside training: backups, recoveries and the recording of steps."""
