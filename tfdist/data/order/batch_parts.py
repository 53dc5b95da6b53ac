"""The positions of each global batch: arithmetic that all workers agree on.

Example:
    >>> cut = Batches(examples=10, global_batch_size=4, tail="keep")
    >>> cut.steps, [cut.bounds(step) for step in range(cut.steps)]
    (3, [(0, 4), (4, 8), (8, 10)])
"""

from dataclasses import dataclass

from tfdist import validation

TAILS = ("pad", "drop", "keep")


@dataclass(frozen=True)
class Batches:
    """The global batches of an epoch, from a position on."""

    examples: int
    global_batch_size: int
    tail: str = "pad"
    start: int = 0

    def __post_init__(self) -> None:
        validation.one_of("tail", self.tail, TAILS)

    @property
    def steps(self) -> int:
        """Number of batches that are left."""
        left = max(0, self.examples - self.start)
        return left // self.global_batch_size if self.tail == "drop" else -(-left // self.global_batch_size)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first position of a batch and the one behind its last; positions beyond the epoch are padding."""
        begin = self.start + step * self.global_batch_size
        end = begin + self.global_batch_size
        return begin, end if self.tail == "pad" else min(end, self.examples)

    def consumed(self, steps: int) -> int:
        """Return how many examples of the epoch are consumed after a number of batches."""
        return min(self.start + steps * self.global_batch_size, self.examples)
