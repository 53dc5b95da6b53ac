"""Private names of Keras: its trainer, and what it calls in a step."""
