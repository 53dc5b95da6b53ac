"""What the agent decides, as pure functions: no process, no clock."""
