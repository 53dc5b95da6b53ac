"""Which collective backend the workers of a strategy take, the same on all, and how it is brought up."""
