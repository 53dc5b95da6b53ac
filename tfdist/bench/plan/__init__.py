"""The plan of a model's division, beside what its steps take: how far predictions are off, and what a choice costs."""
