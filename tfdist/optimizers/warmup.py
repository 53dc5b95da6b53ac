"""A learning rate that rises step by step before a schedule begins."""

from typing import Any

import keras

from tfdist import validation
from tfdist.errors import ConfigTypeError


@keras.saving.register_keras_serializable("tfdist")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from ``initial`` to the rate that a schedule begins with, at every step, and then follows the schedule.

    In step s, counted from 0, with n warm-up steps and p the schedule's rate in its step 0:

        initial + (p - initial) * (s + 1) / (n + 1)     for s < n
        schedule(s - n)                                 from s = n on

    So the first step has a rate already, and the last one before the schedule has not quite the schedule's.

    Args:
        schedule: a Keras schedule, or a number for a constant rate.
        steps: number of steps of the warm-up; 0 for none.
        initial: rate that it rises from. Goyal et al. begin with the rate of the small batch.
        name: of the schedule.

    Raises:
        ConfigError: ``steps`` is negative, or a rate is.
        ConfigTypeError: ``schedule`` is neither a schedule nor a number.

    Example:
        >>> import keras
        >>> rate = Warmup(0.4, steps=3)
        >>> [round(float(rate(step)), 3) for step in range(5)]
        [0.1, 0.2, 0.3, 0.4, 0.4]
        >>> rate = Warmup(keras.optimizers.schedules.CosineDecay(0.4, 100), steps=5)

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 ("gradual warm-up", over
    the first five epochs).
    """

    def __init__(self, schedule: Any, steps: int, initial: float = 0.0, name: str = "warmup") -> None:
        super().__init__()
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule)
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            if isinstance(schedule, bool) or not isinstance(schedule, (int, float)):
                raise ConfigTypeError(
                    f"schedule is {validation.shown(schedule)}; it must be a schedule of Keras or a number."
                )
            validation.number("schedule", schedule, minimum=0)
        validation.integer("steps", steps, minimum=0)
        validation.number("initial", initial, minimum=0)
        self.schedule = schedule
        self.steps = steps
        self.initial = initial
        self.name = name

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step, a float scalar."""
        ops = keras.ops
        step = ops.cast(step, "float32")
        after = self._rate(ops.maximum(step - self.steps, 0.0))
        if not self.steps:
            return after
        rising = self.initial + (self._rate(ops.zeros_like(step)) - self.initial) * (step + 1.0) / (self.steps + 1.0)
        return ops.where(step < self.steps, rising, after)

    def _rate(self, step: Any) -> Any:
        if isinstance(self.schedule, (int, float)):
            return keras.ops.cast(self.schedule, "float32")
        return keras.ops.cast(self.schedule(step), "float32")

    def get_config(self) -> dict[str, Any]:
        """Return what makes the same schedule again, as JSON."""
        is_number = isinstance(self.schedule, (int, float))
        schedule = self.schedule if is_number else keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "steps": self.steps, "initial": self.initial, "name": self.name}
