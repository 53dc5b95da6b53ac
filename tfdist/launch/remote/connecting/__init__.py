"""By what the agent and a host are connected: messages, a key that both have, programs that pass on streams."""
