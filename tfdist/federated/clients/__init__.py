"""The client's side: its data, its model, its training, and the state that stays with it."""
