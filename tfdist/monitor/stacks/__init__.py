"""Where the processes of a job stand: stacks of their Python threads, and what they wait for."""
