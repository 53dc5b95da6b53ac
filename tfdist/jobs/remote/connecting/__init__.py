"""The connection between the agent and a host: messages, shared key, stream programs."""
