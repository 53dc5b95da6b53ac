"""Pages that show a running job, and metrics for other monitoring systems, from its workers' reports in memory."""
