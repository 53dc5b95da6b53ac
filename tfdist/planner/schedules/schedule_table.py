"""The schedule of a pipeline: the order in which each stage computes forward and backward passes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward"]


class Work(NamedTuple):
    """A piece of work: one forward or backward pass of one micro-batch through one part of the model.

    Attributes:
        kind: the kind of pass, "forward" or "backward".
        microbatch: the number of the micro-batch, from 0.
        chunk: the index of the part among the stage's parts of the model, from 0; stage s of K has the parts s, s + K,
            s + 2 K, ...

    Example:
        >>> str(Work("forward", 2)), str(Work("backward", 0, chunk=1))
        ('F2', 'B0.1')
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The work of each stage of a pipeline in a step, in order.

    Attributes:
        name: the name of the schedule.
        stages: the number of stages, K.
        microbatches: the number of parts into which a batch is cut, M.
        chunks: the number of parts of the model on each stage, v.
        orders: the work of each stage, in order.
        live: for each stage, the largest number of forward passes whose activations it may hold.
        updates_each: whether a stage updates its weights after each backward pass (no flush), and not once a step.
        weights: the weights of a forward pass without a flush: "stashed" (the backward pass uses the same again) or
            "predicted"; "current" with a flush.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int = 1
    orders: tuple[tuple[Work, ...], ...]
    live: tuple[int, ...]
    updates_each: bool = False
    weights: Literal["current", "stashed", "predicted"] = "current"

    @property
    def parts(self) -> int:
        """The number of parts into which the model is cut, K v."""
        return self.stages * self.chunks

    def part(self, stage: int, work: Work) -> int:
        """Return the part of the model that a stage's work goes through."""
        return work.chunk * self.stages + stage

    def needs(self, stage: int, work: Work) -> Iterator[tuple[int, Work]]:
        """Yield each piece of work that must end before some work begins, with its stage.

        A forward pass needs the forward pass through the part before. A backward pass needs its own forward pass, and
        the backward pass through the part behind.
        """
        part = self.part(stage, work)
        if work.kind == "forward":
            if part > 0:
                yield self._at(part - 1, "forward", work.microbatch)
        else:
            yield stage, Work("forward", work.microbatch, work.chunk)
            if part < self.parts - 1:
                yield self._at(part + 1, "backward", work.microbatch)

    def versions(self, stage: int) -> dict[Work, int]:
        """Return the number of updates that the weights of each forward and backward pass of a stage have seen.

        Stashed weights are those of the forward pass; predicted weights follow from the newest ones.
        """
        done, found = 0, {}
        for work in self.orders[stage]:
            found[work] = done
            if work.kind == "backward":
                if self.weights == "stashed":
                    found[work] = found[Work("forward", work.microbatch, work.chunk)]
                done += self.updates_each
        return found

    def _at(self, part: int, kind: Kind, microbatch: int) -> tuple[int, Work]:
        chunk, stage = divmod(part, self.stages)
        return stage, Work(kind, microbatch, chunk)
