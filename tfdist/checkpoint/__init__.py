"""Checkpoints that a kill at any moment cannot spoil: saved whole or not at all, every byte checked when read.

    Store         the checkpoints of a training in a directory or an object store
    Checkpoint    what was saved at a step
    Writer        saves in the background
    Part, Joint   what single workers add to a checkpoint, each by itself
    ShardedState  state of which every replica or worker has its own, and what another number of them makes of it

Nothing here loads TensorFlow.
"""

from tfdist.checkpoint.background_writer import Writer
from tfdist.checkpoint.checkpoint_manifest import Joint, Part
from tfdist.checkpoint.checkpoint_store import Checkpoint, Store
from tfdist.checkpoint.state_resizing import ShardedState

__all__ = ["Checkpoint", "Joint", "Part", "ShardedState", "Store", "Writer"]
