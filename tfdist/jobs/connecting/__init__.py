"""The connection between a job and a host agent: messages, shared key, serialized requests."""
