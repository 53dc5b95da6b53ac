"""The first local steps of a schedule with `every="auto"`: timed, and without a meeting. Loads no TensorFlow."""

from dataclasses import dataclass

from tfdist.gradients.outer.meeting_schedules import Event, PostLocalSGD, Synchronization

#: local steps that are not timed: they trace
_WARM = 4
#: local steps that are timed
TIMED = 8


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Stands in for a schedule until its ``every`` is known; asked as a `Synchronization` is.

    Attributes:
        asked: the schedule.
        begun: after so many steps this process has begun.

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
        """Whether the step after so many reduces gradients over all workers."""
        return step < self._reduced

    def is_timed(self, step: int) -> bool:
        """Whether the step after so many is timed."""
        return step >= self._warm

    def events(self, step: int) -> tuple[Event, ...]:
        """Return the choice of ``every``, after the last of the timed steps."""
        return (Event("choose"),) if step == self._warm + TIMED else ()

    def left(self, step: int) -> int:
        """Return how many steps follow before another kind of step, or before the choice."""
        return next(end - step for end in (self._reduced, self._warm, self._warm + TIMED) if end > step)

    def is_equal(self, step: int) -> bool:
        """Whether all workers have the same weights after so many steps."""
        return step <= self._reduced

    def agrees(self, step: int) -> bool:
        """Whether workers agree after so many steps on what their callbacks have decided."""
        return step <= self._reduced
