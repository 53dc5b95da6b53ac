"""The launchers: one class for each value of `--engine`, which brings the processes of a job to their hosts."""
