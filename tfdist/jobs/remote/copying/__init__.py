"""Copies of the state of a training in the memory of another host, which go on to arrive while it trains."""
