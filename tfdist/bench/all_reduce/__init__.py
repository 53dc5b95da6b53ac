"""All-reduces of single tensors and of a model's gradients: every engine, in turns."""
