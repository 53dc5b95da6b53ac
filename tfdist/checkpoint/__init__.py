"""Checkpoints that a kill at any moment cannot spoil: saved whole or not at all, every byte checked when read.

    Store        the checkpoints of a training in a directory or an object store
    Checkpoint   what was saved at a step
    Writer       saves in the background

Nothing here loads TensorFlow.
"""

from tfdist.checkpoint.store import Checkpoint, Store
from tfdist.checkpoint.writer import Writer

__all__ = ["Checkpoint", "Store", "Writer"]
