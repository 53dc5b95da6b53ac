"""The agent of a job, which starts, observes and ends its processes, and reports on them."""
