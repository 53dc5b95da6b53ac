"""Shares that follow the speed of workers: what is measured, decided and changed."""
