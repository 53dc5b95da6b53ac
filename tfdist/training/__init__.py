"""What one Keras step means when replicas share it: every sum, mean and decision is taken over all of them.

The package adapts the model, optimizer, losses and layers that live in a tfdist strategy's scope, object by object.
Classes stay as they are, so a plain Keras model in the same process behaves as before.
"""
