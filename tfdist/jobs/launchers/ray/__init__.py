"""Ray as a launcher of host agents: a driver process, and actors in a placement group."""
