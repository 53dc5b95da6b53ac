"""The side of a client: its data, its model, its training, and the state that stays with it."""
