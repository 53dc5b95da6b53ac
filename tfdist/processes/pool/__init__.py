"""Worker processes that run functions together under a deadline, and stay alive between calls."""
