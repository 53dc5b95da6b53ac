"""Pages that show a job while it runs, and metrics for others' pages: from what its workers say in memory."""
