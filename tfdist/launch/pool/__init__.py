"""Worker processes that run functions together, under a deadline, and are kept from call to call."""
