"""The recording of the parts of each step: timestamps from the graph, phases of the host, and a ring of rows."""
