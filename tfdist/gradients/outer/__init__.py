"""What happens after an update: workers meet in every step, or seldom, and mix the weights that they have by then."""
