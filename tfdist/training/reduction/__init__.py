"""From what each replica has to what all have together: sums, and the reducers of gradients."""
