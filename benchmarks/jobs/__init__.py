"""Benchmarks of a job's work besides training: backups, recoveries and the recording of steps."""
