"""The launchers: one class for each value of `--engine`, which starts the processes of a job on their hosts."""
