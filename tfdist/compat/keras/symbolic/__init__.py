"""Symbolic tensors: the graphs of models, nested models, and attributes of tensors."""
