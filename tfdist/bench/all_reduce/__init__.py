"""All-reduces of single tensors and of a model's gradients, measured for every backend in turns."""
