"""Forward the output of workers to one terminal or file."""
