"""The forwarding of workers' output to one terminal or file."""
