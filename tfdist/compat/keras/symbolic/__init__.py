"""Symbolic tensors: the graphs of models, models within models, and what hangs on a tensor."""
