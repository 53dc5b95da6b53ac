"""Ray as what brings the host agent to nodes: a driver in a process of its own, and actors in a placement group."""
