"""The first local steps of a schedule with `every="auto"`: timed, and without a meeting. Loads no TensorFlow."""

from dataclasses import dataclass

from tfdist.gradients.outer.meeting_schedules import Event, PostLocalSGD, Synchronization

#: local steps that are not timed: they trace
_WARM = 4
#: local steps that are timed
TIMED = 8


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A stand-in for a schedule until its ``every`` is known; it has the methods of a `Synchronization`.

    Attributes:
        asked: the schedule with ``every="auto"``.
        begun: the number of steps after which this process has begun.

    Example:
        >>> from tfdist.gradients.outer.meeting_schedules import PostLocalSGD
        >>> trial = Trial(asked=PostLocalSGD(after=100, every="auto"), begun=0)
        >>> trial.reduces(99), trial.left(100), trial.left(104), trial.events(112)
        (True, 4, 8, (Event(kind='choose', fragment=0),))
    """

    asked: Synchronization
    begun: int

    @property
    def _reduced(self) -> int:
        return self.asked.after if isinstance(self.asked, PostLocalSGD) else 0

    @property
    def _warm(self) -> int:
        return max(self._reduced, self.begun) + _WARM

    def reduces(self, step: int) -> bool:
        """Return whether the step after ``step`` steps reduces gradients over all workers."""
        return step < self._reduced

    def is_timed(self, step: int) -> bool:
        return step >= self._warm

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the choice of ``every``, after the last of the timed steps."""
        return (Event("choose"),) if step == self._warm + TIMED else ()

    def left(self, step: int) -> int:
        """Return the number of steps before another kind of step, or before the choice."""
        return next(end - step for end in (self._reduced, self._warm, self._warm + TIMED) if end > step)

    def is_equal(self, step: int) -> bool:
        """Return whether all workers have the same weights after ``step`` steps."""
        return step <= self._reduced

    def agrees(self, step: int) -> bool:
        """Return whether workers agree, after ``step`` steps, on the decisions of their callbacks."""
        return step <= self._reduced
