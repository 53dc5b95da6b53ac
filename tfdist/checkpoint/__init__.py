"""Checkpoints that a kill at any moment cannot spoil: saved whole or not at all, every byte checked when read.

    Store         the checkpoints of a training in a directory or an object store
    Checkpoint    the state that was saved at a step
    Writer        saves in the background
    Part, Joint   the contributions of single workers to a checkpoint, each saved by its worker
    ShardedState  state of which every replica or worker has its own, and its resizing to another number of them

Nothing here loads TensorFlow.
"""

from tfdist.checkpoint.background_writer import Writer
from tfdist.checkpoint.checkpoint_manifest import Joint, Part
from tfdist.checkpoint.checkpoint_store import Checkpoint, Store
from tfdist.checkpoint.state_resizing import ShardedState

__all__ = ["Checkpoint", "Joint", "Part", "ShardedState", "Store", "Writer"]
