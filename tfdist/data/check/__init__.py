"""Verify a directory against its manifest, and repair a damaged one."""
