"""What stands between a gradient and a weight."""
