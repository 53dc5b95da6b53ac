"""What recording adds to a step, and what that is made of."""
