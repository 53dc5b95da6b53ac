"""Learning rates for large batches: scaled by the batch size, and warmed up.

A schedule has no state. It resumes where it was, because `tfdist.callbacks.backup.train_state` restores the optimizer's
`iterations`.
"""

import math
from collections.abc import Callable
from typing import Any

import keras

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

_FACTORS: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda ratio: 1.0}

# By class names. The first update in proportion to the gradient. The others divide it by its size, so a larger batch
# only makes its direction more certain.
_LINEAR = frozenset({"sgd", "lars"})
_SQRT = frozenset(
    {"adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "muon", "nadam", "rmsprop"}
)


def scale_learning_rate(
    base: float, base_batch: int, batch: int, rule: str | None = None, *, optimizer: Any = "sgd"
) -> float:
    """Return the learning rate for a batch size, given a good one for another batch size.

    With k = batch / base_batch:

        linear    base * k          one large step replaces k small steps at almost the same weights
        sqrt      base * sqrt(k)    the variance of an update stays the same
        none      base              the rate stays the same

    No rule holds for every k: beyond the gradient noise scale a larger batch does not allow a larger rate. Begin with a
    `Warmup` of some epochs, because weights change too fast for a large rate at the start.

    Args:
        base: the learning rate for ``base_batch``.
        base_batch: the number of examples in a batch over all replicas.
        batch: the number of examples in the batch for which a rate is wanted, over all replicas.
        rule: "linear", "sqrt" or "none"; None: the rule for the optimizer.
        optimizer: a Keras optimizer, its class or its name; "linear" for SGD and LARS, "sqrt" for those that divide
            gradients by their size (Adam, Lamb, RMSprop and similar).
    Returns:
        The learning rate.
    Raises:
        ConfigError: a number is not above 0, the rule is unknown, or there is no rule and the optimizer's family is
            unknown.

    Example:
        >>> scale_learning_rate(0.1, 256, 2048)
        0.8
        >>> round(scale_learning_rate(1e-3, 256, 2048, optimizer="adam"), 6)
        0.002828

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (linear); A. Krizhevsky,
    "One weird trick for parallelizing convolutional neural networks", 2014, and E. Hoffer, I. Hubara, D. Soudry, "Train
    longer, generalize better", 2017 (sqrt); S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms", 2022 (sqrt for Adam; it scales its betas too, which is not done here).
    """
    validation.number("base", base, above=0)
    validation.integer("base_batch", base_batch, minimum=1)
    validation.integer("batch", batch, minimum=1)
    return base * factor(_rule_of(optimizer) if rule is None else rule, batch / base_batch)


def factor(rule: str, ratio: float) -> float:
    """Return the factor of a learning rate for a ratio of batch sizes.

    Example:
        >>> factor("linear", 4.0), factor("sqrt", 4.0), factor("none", 4.0)
        (4.0, 2.0, 1.0)
    """
    require_rule("rule", rule)
    return _FACTORS[rule](ratio)


def require_rule(name: str, rule: str) -> None:
    if rule not in _FACTORS:
        raise ConfigError(
            f"{name} is {validation.shown(rule)}; it must be one of {', '.join(_FACTORS)}.",
            name=name,
            received=validation.shown(rule),
        )


def _rule_of(optimizer: Any) -> str:
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    kind = optimizer if isinstance(optimizer, (str, type)) else type(optimizer)
    names = [kind.lower()] if isinstance(kind, str) else [one.__name__.lower() for one in kind.__mro__]
    for name in names:
        if name in _LINEAR | _SQRT:
            return "linear" if name in _LINEAR else "sqrt"
    raise ConfigError(
        f"optimizer is {validation.shown(optimizer)}; no rule is known for its learning rate and the batch size. "
        "Pass rule='linear', 'sqrt' or 'none'.",
        name="optimizer",
        received=validation.shown(optimizer),
    )


@keras.saving.register_keras_serializable("tfdist")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that rises from ``initial`` to the first rate of another schedule, and then follows that one.

    In step s, counted from 0, with n warm-up steps and p the other schedule's rate in its step 0:

        initial + (p - initial) * (s + 1) / (n + 1)     for s < n
        schedule(s - n)                                 from s = n on

    So the rate of the first step is above ``initial``, and the rate of the last warm-up step is below the schedule's.

    Args:
        schedule: a Keras schedule, or a number for a constant rate.
        steps: the number of warm-up steps; 0 for none.
        initial: the rate from which the warm-up rises. Goyal et al. start with the rate of the small batch.
        name: the name of the schedule.

    Raises:
        ConfigError: ``steps`` or a rate is negative.
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
        """Return the JSON from which the same schedule can be made again."""
        is_number = isinstance(self.schedule, (int, float))
        schedule = self.schedule if is_number else keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "steps": self.steps, "initial": self.initial, "name": self.name}
