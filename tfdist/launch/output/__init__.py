"""What workers write, on its way to one terminal or file."""
