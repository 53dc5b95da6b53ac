"""Shares that follow the speed of workers: measurements, decisions and changes."""
