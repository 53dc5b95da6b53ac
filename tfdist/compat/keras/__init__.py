"""Private names of Keras: its trainer, and the parts that it calls in a step."""
