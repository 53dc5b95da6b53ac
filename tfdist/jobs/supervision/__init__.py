"""Decisions of the agent as pure functions: no process, no clock."""
