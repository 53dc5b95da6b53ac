"""The decisions of the agent as pure functions, without a process or a clock."""
