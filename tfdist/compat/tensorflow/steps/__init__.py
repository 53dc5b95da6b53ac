"""The steps of user code: what is handed to them, and what they do with it."""
