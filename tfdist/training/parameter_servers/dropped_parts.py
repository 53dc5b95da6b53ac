"""The examples that backup workers drop: parts of batches whose gradients came too late."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

#: the last parts that are kept one by one; sums have all
_KEPT = 1000


@dataclass(frozen=True)
class DroppedPart:
    """A dropped part: consecutive examples of one batch that no update has seen.

    Attributes:
        step: the number of the batch, from 1, over all models of the strategy.
        worker: the worker that was late; None if all had answered by then.
        first: the index of the first dropped example in the batch.
        examples: the number of dropped examples.
    """

    step: int
    worker: int | None
    first: int
    examples: int


@dataclass
class Dropped:
    """The examples that backup workers have dropped, by worker and by step.

    Attributes:
        steps: the number of training steps.
        seen: the number of examples in all steps.
        by_worker: worker -> the number of examples that were dropped because it was late.
        parts: the last thousand dropped parts.

    Example:
        >>> dropped = Dropped()
        >>> dropped.step([4, 4, 4], late=[2], workers=[0])
        >>> dropped.step([4, 4, 4], late=[], workers=[])
        >>> dropped.examples, dropped.parts[0].step, dropped.parts[0].first
        (4, 1, 8)
        >>> print(dropped)
        4 of 24 examples in 2 steps were dropped (worker 0 was late with 4)
    """

    steps: int = 0
    seen: int = 0
    by_worker: Counter[int | None] = field(default_factory=Counter)
    parts: deque[DroppedPart] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def examples(self) -> int:
        return self.by_worker.total()

    def step(self, rows: Sequence[int], late: Sequence[int], workers: Sequence[int]) -> None:
        """Count a step: the rows of its parts, the parts that were late, and the workers that were, as far as known."""
        self.steps += 1
        self.seen += sum(rows)
        for number, part in enumerate(late):
            worker = workers[number] if number < len(workers) else None
            self.by_worker[worker] += rows[part]
            self.parts.append(DroppedPart(self.steps, worker, sum(rows[:part]), rows[part]))

    def since(self, before: "Dropped") -> "Dropped":
        """Return the dropped examples since a copy was made."""
        parts = deque((part for part in self.parts if part.step > before.steps), maxlen=_KEPT)
        return Dropped(self.steps - before.steps, self.seen - before.seen, self.by_worker - before.by_worker, parts)

    def copy(self) -> "Dropped":
        return Dropped(self.steps, self.seen, self.by_worker.copy(), self.parts.copy())

    def __str__(self) -> str:
        told = [
            f"{'no worker' if worker is None else f'worker {worker}'} was late with {examples:,}"
            for worker, examples in sorted(self.by_worker.items(), key=lambda one: (one[0] is None, one[0] or 0))
        ]
        shown = f" ({', '.join(told)})" if told else ""
        return f"{self.examples:,} of {self.seen:,} examples in {self.steps:,} steps were dropped{shown}"
