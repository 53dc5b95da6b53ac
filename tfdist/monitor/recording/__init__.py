"""What the steps of a process were made of: stamps taken in the graph, the host's phases, a ring of rows of both."""
